// The knowledge graph: look an entity up, and go from one to the next. The picture repeats what the table says.

import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { Link, useSearchParams } from "wouter";
import { client, dataOf } from "../../api/client";
import type { components } from "../../api/schema";
import { Empty } from "../../components/notes";
import { Page, Queried, Section } from "../../components/page";
import { toWords } from "../../components/rows";
import { Facts, Table } from "../../components/table";
import "../../styles/records.css";

type Neighbors = components["schemas"]["Neighbors"];
const KINDS = ["person", "company", "project", "account", "location"];
const PAGE = 50;

export default function GraphPage() {
  const [search, setSearch] = useSearchParams();
  const key = search.get("key") ?? "";
  const set = (values: Record<string, string>) =>
    setSearch((previous) => {
      const next = new URLSearchParams(previous);
      for (const [name, value] of Object.entries(values)) {
        if (value) next.set(name, value);
        else next.delete(name);
      }
      return next;
    });
  return (
    <Page title="Knowledge graph" actions={<Link href="/nights">Nights</Link>}>
      <Section title="Entities">
        <form
          className="filters"
          role="search"
          onSubmit={(event) => {
            event.preventDefault();
            const form = new FormData(event.currentTarget);
            set({ text: String(form.get("text")), kind: String(form.get("kind")), offset: "", key: "" });
          }}
        >
          <div>
            <label htmlFor="text">Part of a name</label>
            <input id="text" name="text" type="search" maxLength={200} defaultValue={search.get("text") ?? ""} />
          </div>
          <div>
            <label htmlFor="kind">Kind</label>
            <select id="kind" name="kind" defaultValue={search.get("kind") ?? ""}>
              <option value="">all kinds</option>
              {KINDS.map((kind) => (
                <option key={kind}>{kind}</option>
              ))}
            </select>
          </div>
          <button type="submit">Search</button>
        </form>
        <Entities
          search={search}
          onPage={(offset) => set({ offset: offset ? String(offset) : "" })}
          onKey={(name) => set({ key: name })}
        />
      </Section>
      {key && <Around entity={key} onKey={(name) => set({ key: name })} />}
    </Page>
  );
}

interface EntitiesProps {
  search: URLSearchParams;
  onPage: (offset: number) => void;
  onKey: (key: string) => void;
}

function Entities({ search, onPage, onKey }: EntitiesProps) {
  const offset = Number(search.get("offset")) || 0;
  const query = { text: search.get("text") ?? "", kind: search.get("kind") ?? "", limit: PAGE, offset };
  const entityQuery = useQuery({
    queryKey: ["graph", "entities", query],
    queryFn: () => dataOf(client.GET("/api/v1/graph/entities", { params: { query } })),
    placeholderData: keepPreviousData,
  });
  return (
    <Queried query={entityQuery}>
      {({ entities, next_offset }) =>
        entities.length === 0 ? (
          <Empty title={query.text || query.kind ? "No such entity" : "The graph is empty"}>
            <p>
              Nights read documents into it: <code>trainyard nightly run</code>.
            </p>
          </Empty>
        ) : (
          <>
            <Table
              caption="Entities"
              rows={entities}
              rowKey={(entity) => entity.key}
              columns={[
                {
                  title: "Name",
                  cell: (entity) => (
                    <button type="button" onClick={() => onKey(entity.key)}>
                      {entity.name}
                    </button>
                  ),
                },
                { title: "Kind", cell: (entity) => entity.kind },
                { title: "Tenant", cell: (entity) => entity.tenant },
                { title: "Facts", cell: (entity) => factText(entity.attributes) },
              ]}
            />
            <div className="actions">
              <button type="button" disabled={offset === 0} onClick={() => onPage(Math.max(0, offset - PAGE))}>
                Previous
              </button>
              <button type="button" disabled={next_offset == null} onClick={() => onPage(next_offset ?? 0)}>
                Next
              </button>
              <span className="quiet">
                entities {offset + 1} to {offset + entities.length}
              </span>
            </div>
          </>
        )
      }
    </Queried>
  );
}

const factText = (facts: Record<string, string>): string =>
  Object.entries(facts)
    .map(([name, value]) => `${toWords(name)}: ${value}`)
    .join("; ");

function Around({ entity, onKey }: { entity: string; onKey: (key: string) => void }) {
  const query = useQuery({
    queryKey: ["graph", "neighbors", entity],
    queryFn: () => dataOf(client.GET("/api/v1/graph/entities/{key}", { params: { path: { key: entity } } })),
    placeholderData: keepPreviousData,
  });
  return (
    <div aria-live="polite">
      <Queried query={query}>
        {(neighbors) => (
          <Section title={`${neighbors.entity.name} (${neighbors.entity.kind})`}>
            <Facts
              facts={Object.entries(neighbors.entity.attributes).map(
                ([name, value]) => [toWords(name), value] as const,
              )}
            />
            {neighbors.relations.length > 0 && <Picture neighbors={neighbors} onKey={onKey} />}
            {neighbors.relations.length === 0 ? (
              <p>No relation leads from it or to it.</p>
            ) : (
              <Table
                caption={`Relations of ${neighbors.entity.name}`}
                rows={neighbors.relations}
                rowKey={(relation, index) => `${relation.kind}${relation.direction}${relation.entity.key}${index}`}
                columns={[
                  {
                    title: "Relation",
                    cell: (relation) =>
                      relation.direction === "out" ? `${toWords(relation.kind)} →` : `← ${toWords(relation.kind)}`,
                  },
                  {
                    title: "Entity",
                    cell: (relation) => (
                      <button type="button" onClick={() => onKey(relation.entity.key)}>
                        {relation.entity.name}
                      </button>
                    ),
                  },
                  { title: "Kind", cell: (relation) => relation.entity.kind },
                ]}
              />
            )}
            <Table
              caption={`Documents that name ${neighbors.entity.name}`}
              rows={neighbors.documents}
              rowKey={(document) => document.key}
              columns={[
                { title: "Stream", cell: (document) => document.stream },
                { title: "Documents that name it", cell: (document) => document.names.join(", ") },
              ]}
            />
            {neighbors.more && <p className="quiet">There are more; the first 100 are shown.</p>}
          </Section>
        )}
      </Queried>
    </div>
  );
}

const DRAWN = 16;
const [WIDTH, HEIGHT] = [760, 420];

/** The entity in the middle, up to `DRAWN` neighbours around it. For eyes and mice; the table has all of it. */
function Picture({ neighbors, onKey }: { neighbors: Neighbors; onKey: (key: string) => void }) {
  const visible = neighbors.relations.slice(0, DRAWN);
  const [cx, cy] = [WIDTH / 2, HEIGHT / 2];
  const positions = visible.map((_, index) => {
    const angle = (2 * Math.PI * index) / visible.length - Math.PI / 2;
    return [cx + 0.36 * WIDTH * Math.cos(angle), cy + 0.4 * HEIGHT * Math.sin(angle)] as const;
  });
  return (
    <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} className="neighbors" aria-hidden="true" focusable="false">
      <defs>
        <marker id="arrow" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">
          <path d="M 0 0 L 10 5 L 0 10 z" />
        </marker>
      </defs>
      {positions.map(([x, y], index) => {
        const [near, far] = [between([cx, cy], [x, y], 0.1), between([cx, cy], [x, y], 0.95)];
        const [from, to] = visible[index].direction === "out" ? [near, far] : [far, near];
        const [tx, ty] = between([cx, cy], [x, y], 0.66);
        return (
          <g key={index}>
            <line x1={from[0]} y1={from[1]} x2={to[0]} y2={to[1]} markerEnd="url(#arrow)" />
            <text x={tx} y={ty - 4} textAnchor="middle" className="relation">
              {toWords(visible[index].kind)}
            </text>
          </g>
        );
      })}
      {positions.map(([x, y], index) => (
        <g key={index} onClick={() => onKey(visible[index].entity.key)} cursor="pointer">
          <circle cx={x} cy={y} r="9" />
          <text x={x} y={y + 24} textAnchor="middle">
            {short(visible[index].entity.name)}
          </text>
        </g>
      ))}
      <circle cx={cx} cy={cy} r="13" />
      <text x={cx} y={cy - 20} textAnchor="middle" fontWeight="700">
        {short(neighbors.entity.name)}
      </text>
    </svg>
  );
}

type Point = readonly [number, number];

/** The point at a share of the way from one point to another. */
const between = (from: Point, to: Point, share: number): Point => [
  from[0] + (to[0] - from[0]) * share,
  from[1] + (to[1] - from[1]) * share,
];

const short = (name: string): string => (name.length > 28 ? `${name.slice(0, 27)}…` : name);
