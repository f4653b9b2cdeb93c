// The reader's own data: uploads with what can be done with them, and a look at any file or folder of the data roots.

import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { Link } from "wouter";
import { client, dataOf } from "../../api/client";
import { useLogin } from "../../api/login";
import type { DataEntry } from "../../api/schema";
import { ActionButton } from "../../components/action";
import { useChoices } from "../../components/choices";
import { ColumnMap } from "../../components/columns";
import { formatBytes, formatTime } from "../../components/format";
import { Section } from "../../components/page";
import { Table } from "../../components/table";
import { Upload } from "../../components/upload";
import { PairsPreview } from "../jobs/pairs";
import { DataPreview } from "../jobs/preview";

export function OwnData() {
  const [path, setPath] = useState("");
  const [columns, setColumns] = useState<unknown>(undefined);
  const { choices, start } = useChoices({ path }, []);
  const look = (next: string) => {
    setPath(next);
    setColumns(undefined);
  };
  return (
    <>
      <Section title="Your data">
        <div className="own-data">
          <label htmlFor="own-path">File or folder</label>
          <input
            id="own-path"
            type="text"
            list="own-paths"
            autoComplete="off"
            spellCheck={false}
            placeholder="chats.jsonl"
            value={path}
            onChange={(event) => look(event.target.value)}
          />
          <datalist id="own-paths">
            {choices.path?.map((entry) => (
              <option key={entry.value} value={entry.value} label={entry.label} />
            ))}
          </datalist>
          {start && (
            <p className="help">
              Inside a data root. A relative path starts in <code>{start}</code>.
            </p>
          )}
          <Upload documents label="files" onUploaded={look} />
          <ColumnMap path={path} value={columns} onChange={setColumns} />
        </div>
        <Uploads onLook={look} />
      </Section>
      {path && (
        <>
          <DataPreview key={path} draft={{ dataset: { path, ...(columns ? { columns } : {}) } }} title="Rows" />
          <Section title="Pairs of documents">
            <p className="quiet">Questions and answers that rules find in documents, before anything is started.</p>
            <PairsPreview key={path} path={path} />
          </Section>
        </>
      )}
    </>
  );
}

function Uploads({ onLook }: { onLook: (path: string) => void }) {
  const { allows } = useLogin();
  const queries = useQueryClient();
  const fileList = useQuery({
    queryKey: ["data", "folder", ""],
    queryFn: () => dataOf(client.GET("/api/v1/data", { params: { query: {} } })),
  });
  const remove = useMutation({
    mutationFn: (name: string) =>
      dataOf(client.DELETE("/api/v1/data/uploads/{name}", { params: { path: { name } }, body: undefined as never })),
    onSuccess: () => queries.invalidateQueries({ queryKey: ["data"] }),
  });
  const uploads = (fileList.data?.entries ?? []).filter((entry) => entry.uploaded);
  if (uploads.length === 0) return null;
  const hrefOf = (entry: DataEntry) =>
    entry.kind === "folder"
      ? `/chains/templates/qa-pipeline?parameters=${encodeURIComponent(JSON.stringify({ documents: entry.path }))}`
      : `/jobs/new?path=${encodeURIComponent(entry.path)}`;
  return (
    <Table
      cards
      caption="Uploads"
      rows={uploads}
      rowKey={(upload) => upload.path}
      columns={[
        { title: "Upload", cell: (upload) => <code>{upload.path}</code> },
        { title: "Kind", cell: (upload) => upload.kind },
        { title: "Size", numeric: true, cell: (upload) => formatBytes(upload.bytes) },
        { title: "Uploaded", cell: (upload) => formatTime(upload.modified) },
        {
          title: "Actions",
          cell: (upload) => (
            <div className="actions">
              <button type="button" onClick={() => onLook(upload.path)} aria-label={`Look at ${upload.uploaded}`}>
                Look
              </button>
              <Link href={hrefOf(upload)} aria-label={`Train on ${upload.uploaded}`}>
                Train
              </Link>
              {allows("run") && (
                <ActionButton
                  mutation={remove}
                  variables={upload.uploaded!}
                  danger
                  confirm={`Delete ${upload.uploaded}?`}
                >
                  Delete
                </ActionButton>
              )}
            </div>
          ),
        },
      ]}
    />
  );
}
