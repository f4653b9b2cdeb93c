// Three ways to begin with data of one's own: each opens the form that is for it, with the path filled in.

import { useState } from "react";
import { useLocation } from "wouter";
import { Section } from "../../components/page";
import { useChoices } from "../../components/choices";
import { Upload } from "../../components/upload";

interface Start {
  name: string;
  text: string;
  label: string;
  example: string;
  href: (path: string) => string;
}

const templateOf = (name: string, field: string) => (path: string) =>
  `/chains/templates/${name}?parameters=${encodeURIComponent(JSON.stringify(path ? { [field]: path } : {}))}`;

const STARTS: Start[] = [
  {
    name: "Documents",
    text: "Pages, manuals or policies: questions and answers are made from them, then learned and evaluated.",
    label: "Folder of documents",
    example: "handbook",
    href: templateOf("qa-pipeline", "documents"),
  },
  {
    name: "Chats",
    text: "Rows that you have: conversations, instructions with answers, or preferences.",
    label: "File of chats",
    example: "chats.jsonl",
    href: (path) => `/jobs/new${path ? `?path=${encodeURIComponent(path)}` : ""}`,
  },
  {
    name: "Code",
    text: "A folder of code or a git repository: functions are learned from their documentation.",
    label: "Folder of code",
    example: "src",
    href: templateOf("code-tuning", "repository"),
  },
];

export function Starts() {
  return (
    <Section title="Train on your own data">
      <div className="cards starts">
        {STARTS.map((start) => (
          <StartCard key={start.name} start={start} />
        ))}
      </div>
    </Section>
  );
}

function StartCard({ start }: { start: Start }) {
  const [path, setPath] = useState("");
  const [, navigate] = useLocation();
  const id = `start-${start.name.toLowerCase()}`;
  const { choices, start: folder } = useChoices({ path }, []);
  return (
    <form
      className="card"
      aria-label={start.name}
      onSubmit={(event) => {
        event.preventDefault();
        navigate(start.href(path.trim()));
      }}
    >
      <h3>{start.name}</h3>
      <p>{start.text}</p>
      <label htmlFor={id}>{start.label}</label>
      <div className="form-row">
        <input
          id={id}
          type="text"
          list={`${id}-list`}
          autoComplete="off"
          spellCheck={false}
          placeholder={start.example}
          value={path}
          onChange={(event) => setPath(event.target.value)}
        />
        <datalist id={`${id}-list`}>
          {choices.path?.map((entry) => (
            <option key={entry.value} value={entry.value} label={entry.label} />
          ))}
        </datalist>
        <button aria-label={`Continue with ${start.name.toLowerCase()}`}>Continue</button>
      </div>
      {start.name !== "Code" && (
        <Upload
          documents={start.name === "Documents"}
          label={start.name === "Documents" ? "documents" : "chats"}
          onUploaded={setPath}
        />
      )}
      {folder && (
        <p className="quiet">
          A relative path starts in <code>{folder}</code>.
        </p>
      )}
    </form>
  );
}
