// Stored chains, and templates to begin with.

import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { Link } from "wouter";
import { client, dataOf } from "../../api/client";
import { formatTime } from "../../components/format";
import { Empty } from "../../components/notes";
import { Page, Queried, Section } from "../../components/page";
import { Table } from "../../components/table";
import "../../styles/graph.css";

const PAGE = 50;

export default function ChainsPage() {
  const [name, setName] = useState("");
  const [offset, setOffset] = useState(0);
  const chains = useQuery({
    queryKey: ["chains", name, offset],
    queryFn: () =>
      dataOf(client.GET("/api/v1/chains", { params: { query: { name: name || undefined, limit: PAGE, offset } } })),
    refetchInterval: 10_000,
  });
  const templates = useQuery({
    queryKey: ["templates"],
    queryFn: () => dataOf(client.GET("/api/v1/chains/templates")),
    staleTime: Infinity,
  });
  return (
    <Page
      title="Chains"
      actions={
        <Link href="/chains/new" className="button primary">
          New chain
        </Link>
      }
    >
      <Section
        title="Stored chains"
        actions={
          <>
            <label htmlFor="chain-filter">Name contains</label>
            <input
              id="chain-filter"
              type="search"
              value={name}
              onChange={(event) => {
                setName(event.target.value);
                setOffset(0);
              }}
            />
          </>
        }
      >
        <Queried query={chains}>
          {({ chains, total }) =>
            total === 0 ? (
              <Empty title={name ? "No chain has that name" : "No chain is stored yet"}>
                <p>
                  Open a template below, or begin with <Link href="/chains/new">an empty canvas</Link>.
                </p>
              </Empty>
            ) : (
              <>
                <Table
                  cards
                  caption="Stored chains"
                  rows={chains}
                  rowKey={(chain) => chain.id}
                  columns={[
                    { title: "Name", cell: (chain) => <Link href={`/chains/${chain.id}`}>{chain.name}</Link> },
                    { title: "Description", cell: (chain) => chain.description },
                    { title: "Nodes", cell: (chain) => chain.nodes, numeric: true },
                    { title: "Revision", cell: (chain) => chain.revision, numeric: true },
                    { title: "Tenant", cell: (chain) => chain.tenant },
                    { title: "Author", cell: (chain) => chain.author },
                    { title: "Stored", cell: (chain) => formatTime(chain.created) },
                    {
                      title: "",
                      cell: (chain) => (
                        <Link href={`/chains/${chain.id}/edit`} aria-label={`Edit ${chain.name}`}>
                          Edit
                        </Link>
                      ),
                    },
                  ]}
                />
                <div className="actions">
                  <span className="quiet">
                    {offset + 1} to {offset + chains.length} of {total}
                  </span>
                  <button type="button" disabled={offset === 0} onClick={() => setOffset(Math.max(0, offset - PAGE))}>
                    Newer
                  </button>
                  <button type="button" disabled={offset + PAGE >= total} onClick={() => setOffset(offset + PAGE)}>
                    Older
                  </button>
                </div>
              </>
            )
          }
        </Queried>
      </Section>
      <Section title="Templates">
        <Queried query={templates}>
          {({ templates }) => (
            <div className="cards">
              {templates.map((template) => (
                <article key={template.name} className="card" aria-label={template.name}>
                  <h3>{template.name}</h3>
                  <p>{template.description}</p>
                  <p className="quiet">{template.nodes.join(" → ")}</p>
                  <div className="actions">
                    <Link href={`/chains/templates/${template.name}`} className="button">
                      Use {template.name}
                    </Link>
                  </div>
                </article>
              ))}
            </div>
          )}
        </Queried>
      </Section>
    </Page>
  );
}
