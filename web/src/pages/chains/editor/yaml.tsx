// The chain as YAML, the same text that `trainyard run` takes: to read, download, or replace by another one.

import { useMutation } from "@tanstack/react-query";
import { useEffect, useRef, useState } from "react";
import type { ExpandedChain } from "../../../api/schema";
import { saveText } from "../../../components/download";
import { ProblemNote } from "../../../components/notes";
import { expand } from "./server";

interface YamlDialogProps {
  name: string;
  text: string;
  readOnly: boolean;
  onClose: () => void;
  onImport: (importedChain: ExpandedChain) => void;
}

export function YamlDialog({ name, text, readOnly, onClose, onImport }: YamlDialogProps) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [editedText, setEditedText] = useState(text);
  const read = useMutation({ mutationFn: () => expand({ text: editedText }), onSuccess: onImport });
  useEffect(() => dialog.current?.showModal(), []);
  const download = () => saveText(`${name}.yaml`, text, "application/yaml");
  return (
    <dialog ref={dialog} className="wide" aria-label="The chain as YAML" onClose={onClose}>
      <h2>YAML</h2>
      <label htmlFor="yaml-text">A chain, a job or the call of a template</label>
      <textarea
        id="yaml-text"
        className="code"
        spellCheck={false}
        readOnly={readOnly}
        value={editedText}
        onChange={(event) => setEditedText(event.target.value)}
      />
      <p>
        <label htmlFor="yaml-file">From a file</label>
        <input
          id="yaml-file"
          type="file"
          accept=".yaml,.yml,.json"
          disabled={readOnly}
          onChange={async (event) => {
            const [file] = event.target.files ?? [];
            if (file) setEditedText(await file.text());
          }}
        />
      </p>
      {read.error && <ProblemNote error={read.error} />}
      <div className="actions">
        <button type="button" disabled={readOnly || read.isPending} onClick={() => read.mutate()}>
          Put it on the canvas
        </button>
        <button type="button" onClick={download} disabled={!text}>
          Download {name}.yaml
        </button>
        <button type="button" onClick={() => dialog.current?.close()}>
          Close
        </button>
      </div>
    </dialog>
  );
}
