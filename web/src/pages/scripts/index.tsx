// Training scripts: the built-in one, those of this home, and what a chain's trainer would run. Edit one, save it under a
// name, train with it on the backend `script`.

import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { client, dataOf } from "../../api/client";
import { useLogin } from "../../api/login";
import type { TrainingScriptList, TrainingScriptText } from "../../api/schema";
import { ActionButton } from "../../components/action";
import { formatBytes, formatTime } from "../../components/format";
import { Empty } from "../../components/notes";
import { Page, Queried, Section } from "../../components/page";
import { Table } from "../../components/table";
import { BUILT_IN, Draft } from "./draft";
import { RunScript } from "./run";

export default function ScriptsPage() {
  const login = useLogin();
  const [selectedScript, setSelectedScript] = useState(BUILT_IN);
  const [proposal, setProposal] = useState<Proposal | null>(null);
  const scripts = useQuery({
    queryKey: ["scripts"],
    queryFn: () => dataOf(client.GET("/api/v1/scripts")),
    enabled: login.tenant === "",
  });
  const script = useQuery({
    queryKey: ["scripts", selectedScript],
    queryFn: () => dataOf(client.GET("/api/v1/scripts/{name}", { params: { path: { name: selectedScript } } })),
    enabled: login.tenant === "",
    refetchOnWindowFocus: false, // what is being edited is compared by its ETag when it is saved
  });
  if (login.tenant !== "") {
    return (
      <Page title="Scripts">
        <Empty title="This login is for one tenant">
          <p>Scripts are code of the whole machine, for logins that are for all tenants.</p>
        </Empty>
      </Page>
    );
  }
  return (
    <Page title="Scripts">
      <p className="banner">
        A script is code: it runs on this machine with the rights of the user who started Trainyard, and reads and
        changes what that user can. Train only with what you have read.
      </p>
      <Queried query={scripts}>
        {(list) => (
          <Section title="Scripts of this home">
            <Table
              caption="Scripts of this home"
              rows={list.scripts}
              rowKey={(entry) => entry.name}
              columns={[
                {
                  title: "Script",
                  cell: (entry) => (
                    <button
                      type="button"
                      aria-pressed={entry.name === selectedScript}
                      onClick={() => {
                        setProposal(null);
                        setSelectedScript(entry.name);
                      }}
                    >
                      {entry.name}
                    </button>
                  ),
                },
                { title: "Size", numeric: true, cell: (entry) => formatBytes(entry.bytes) },
                { title: "Changed", cell: (entry) => formatTime(entry.changed) || "with Trainyard" },
                { title: "SHA-256", cell: (entry) => <code title={entry.sha256}>{entry.sha256.slice(0, 12)}</code> },
              ]}
            />
            <Allowed list={list} />
          </Section>
        )}
      </Queried>
      <Queried query={script}>
        {(data) => (
          <Editor
            key={`${data.name} ${proposal?.name ?? ""}`}
            script={data}
            proposal={proposal}
            canEdit={scripts.data?.can_edit === true}
            onSaved={(name) => {
              setProposal(null);
              setSelectedScript(name);
            }}
          />
        )}
      </Queried>
      {scripts.data?.can_run && login.allows("run") && <RunScript scripts={scripts.data.scripts} />}
      <Draft
        list={scripts.data}
        onEdit={(name, text) => {
          setProposal({ name: name.replaceAll(/[^A-Za-z0-9_-]/g, "-").slice(0, 64), text });
          setSelectedScript(BUILT_IN);
        }}
      />
    </Page>
  );
}

/** Features that the operator has switched on, and the settings of the others. */
function Allowed({ list }: { list: TrainingScriptList }) {
  return (
    <>
      {!list.can_run && (
        <p className="quiet">
          Chains may not run scripts on this machine: <code>allow_scripts = true</code> in <code>trainyard.toml</code>{" "}
          allows it.
        </p>
      )}
      {!list.can_edit && (
        <p className="quiet">
          Scripts are not written from here: <code>api_edit_scripts = true</code> in <code>trainyard.toml</code> allows
          it to logins with the scope admin. Their folder is <code>{list.folder}</code>.
        </p>
      )}
    </>
  );
}

/** A text that is edited under a name of its own. */
interface Proposal {
  name: string;
  text: string;
}

interface EditorProps {
  script: TrainingScriptText;
  proposal: Proposal | null;
  canEdit: boolean;
  onSaved: (name: string) => void;
}

function Editor({ script, proposal, canEdit, onSaved }: EditorProps) {
  const queries = useQueryClient();
  const login = useLogin();
  const [text, setText] = useState(proposal?.text ?? script.text);
  const [name, setName] = useState(proposal?.name ?? (script.name === BUILT_IN ? "" : script.name));
  const [base, setBase] = useState(script);
  const edits = canEdit && login.allows("admin");
  const dirty = text !== base.text;
  // A newer text replaces the old one only where nothing was typed.
  if (!dirty && script.etag !== base.etag) {
    setBase(script);
    setText(script.text);
  }
  const save = useMutation({
    mutationFn: () =>
      dataOf(
        client.PUT("/api/v1/scripts/{name}", {
          params: { path: { name }, header: name === base.name ? { "If-Match": `"${base.etag}"` } : {} },
          body: { text } as never,
        }),
      ),
    onSuccess: (savedScript) => {
      queries.setQueryData(["scripts", savedScript.name], savedScript);
      setBase(savedScript);
      onSaved(savedScript.name);
      return queries.invalidateQueries({ queryKey: ["scripts"], exact: true });
    },
  });
  return (
    <Section title={proposal ? `New script ${name}` : dirty ? `${script.name}, edited` : script.name}>
      <label htmlFor="script-text">Text of the script</label>
      <textarea
        id="script-text"
        className="code script-text"
        spellCheck={false}
        readOnly={!edits}
        value={text}
        onChange={(event) => setText(event.target.value)}
      />
      {edits && (
        <div className="form-row">
          <div>
            <label htmlFor="script-name">Save as</label>
            <input
              id="script-name"
              value={name}
              pattern="[A-Za-z0-9][A-Za-z0-9_-]{0,63}"
              onChange={(event) => setName(event.target.value)}
            />
          </div>
          <ActionButton mutation={save} variables={undefined} disabled={!name || (!dirty && name === base.name)}>
            Save
          </ActionButton>
          <button type="button" disabled={!dirty} onClick={() => setText(base.text)}>
            Undo all
          </button>
        </div>
      )}
      {save.isSuccess && !dirty && <p role="status">Saved {save.data.name}.</p>}
    </Section>
  );
}
