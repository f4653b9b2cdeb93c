// Files of the reader's own machine: chosen, sent, and named as a chain names them.

import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useId, useRef, useState } from "react";
import { client, dataOf, Problem, uploadFile } from "../api/client";
import { useLogin } from "../api/login";
import { formatBytes } from "./format";
import { ProblemNote } from "./notes";
import "./form.css";

const ROWS = [".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet", ".arrow", ".gz"];
const DOCUMENTS = [".md", ".markdown", ".txt", ".rst", ".html", ".htm", ".pdf", ".docx", ".pptx", ".xlsx", ".epub"];

interface Sent {
  name: string;
  bytes: number;
  total: number;
}

/** A name for the folder of several files: that of the folder they are in, else the day and the time. */
function folderOf(files: readonly File[]): string {
  const folder = files[0]!.webkitRelativePath.split("/")[0] ?? "";
  const time = new Date().toISOString().slice(0, 19).replaceAll(":", "").replace("T", "-");
  return `${folder.replace(/^\.+/, "") || "documents"}-${time}`;
}

/** A file of a folder below the chosen one keeps the folder's name in its own. */
const nameOf = (file: File): string => file.webkitRelativePath.split("/").slice(1).join("-") || file.name;

const isReadable = (file: File): boolean =>
  !file.webkitRelativePath.split("/").some((part) => part.startsWith(".")) && !file.name.startsWith(".");

/** Buttons that upload files; `onUploaded` gets the path of the file, or of the folder of several. */
export function Upload({
  onUploaded,
  documents = false,
  label: noun = documents ? "documents" : "a file",
}: {
  onUploaded: (path: string) => void;
  /** Whether several files, and folders, are one data set. */
  documents?: boolean;
  label?: string;
}) {
  const { allows } = useLogin();
  const queries = useQueryClient();
  const id = useId();
  const fileInput = useRef<HTMLInputElement>(null);
  const folder = useRef<HTMLInputElement>(null);
  const stop = useRef<AbortController | null>(null);
  const [transfer, setTransfer] = useState<Sent | null>(null);
  const [problem, setProblem] = useState<unknown>(null);
  const [message, setMessage] = useState("");
  const limits = useQuery({
    queryKey: ["data", "folder", ""],
    queryFn: () => dataOf(client.GET("/api/v1/data", { params: { query: {} } })),
    staleTime: 60_000,
    retry: false,
  });
  const most = limits.data?.upload_bytes ?? Infinity;
  const send = async (selection: readonly File[]) => {
    const files = selection.filter(isReadable);
    if (files.length === 0) return;
    setProblem(null);
    setMessage("");
    stop.current = new AbortController();
    const total = files.reduce((sum, file) => sum + file.size, 0);
    const into = files.length > 1 || files[0]!.webkitRelativePath ? folderOf(files) : "";
    let previousBytes = 0;
    try {
      const large = files.find((file) => file.size > most);
      if (large)
        throw new Problem(
          413,
          "E-BODY-LENGTH",
          `${large.name} has ${formatBytes(large.size)}; a file may have ${formatBytes(most)}.`,
          "",
          "Put it into a folder that data_roots names, or let the operator raise upload_mb.",
        );
      let path = "";
      for (const file of files) {
        const progress = (bytes: number) => setTransfer({ name: file.name, bytes: previousBytes + bytes, total });
        progress(0);
        const uploadedFile = await uploadFile(file, {
          name: nameOf(file),
          folder: into,
          signal: stop.current.signal,
          onProgress: progress,
        });
        previousBytes += file.size;
        path = uploadedFile.folder_path || uploadedFile.path;
      }
      setMessage(path);
      onUploaded(path);
    } catch (error) {
      if (!(error instanceof DOMException && error.name === "AbortError")) setProblem(error);
    } finally {
      setTransfer(null);
      await queries.invalidateQueries({ queryKey: ["data"] });
    }
  };
  if (!allows("run")) return null;
  const input = (reference: typeof fileInput, attributes: object, label: string) => (
    <input
      ref={reference}
      type="file"
      className="visually-hidden"
      tabIndex={-1}
      aria-label={label}
      onChange={(event) => {
        void send([...(event.target.files ?? [])]);
        event.target.value = ""; // the same file may be chosen again
      }}
      {...attributes}
    />
  );
  const accept = (documents ? [...DOCUMENTS, ...ROWS] : [...ROWS, ...DOCUMENTS]).join(",");
  return (
    <div className="upload">
      {input(fileInput, { accept, multiple: documents }, `File to upload for ${noun}`)}
      {documents && input(folder, { webkitdirectory: "" }, `Folder to upload for ${noun}`)}
      <div className="actions">
        <button type="button" disabled={transfer !== null} onClick={() => fileInput.current?.click()}>
          Upload {noun}
        </button>
        {documents && (
          <button type="button" disabled={transfer !== null} onClick={() => folder.current?.click()}>
            Upload a folder
          </button>
        )}
      </div>
      {transfer && (
        <p role="status" className="quiet">
          <label htmlFor={id}>{transfer.name}</label>{" "}
          <progress id={id} value={transfer.bytes} max={Math.max(1, transfer.total)} /> {formatBytes(transfer.bytes)} of{" "}
          {formatBytes(transfer.total)}{" "}
          <button type="button" onClick={() => stop.current?.abort()}>
            Cancel
          </button>
        </p>
      )}
      {message && !transfer && (
        <p role="status" className="quiet">
          uploaded as <code>{message}</code>
        </p>
      )}
      {problem !== null && <ProblemNote error={problem} />}
    </div>
  );
}
