// The visual editor of a chain: the canvas shows a spec, which the service checks, stores and runs.

import { ReactFlowProvider, useReactFlow } from "@xyflow/react";
import { useQuery } from "@tanstack/react-query";
import { useCallback, useEffect, useEffectEvent, useMemo, useRef, useState } from "react";
import { useSearchParams } from "wouter";
import { client, dataOf, type ProblemReason } from "../../../api/client";
import { useLogin } from "../../../api/login";
import type { ChainDetail, ExpandedChain, Palette, RunNode } from "../../../api/schema";
import { dataOf as nodeDataOf, layOut, NODE_WIDTH, type GraphNode, type Place } from "../../../components/graph";
import { Loading, ProblemNote } from "../../../components/notes";
import { Page } from "../../../components/page";
import { QuestionNote, questionsOf, useQuestion } from "../../../components/question";
import { portGroups, usePalette, type PortGroups } from "../../../components/ports";
import { Canvas, FIT } from "./canvas";
import { copies, draftKey, DraftStore, freeId, useDraft, removeNodes, type Draft, type DraftNode } from "./draft";
import { CheckNotes, Reasons } from "../reasons";
import { ChainSettings } from "./chain_settings";
import { ChainEstimate } from "./estimate";
import { Inspector } from "./inspector";
import { PaletteList } from "./palette";
import { useRun, useSave } from "./saving";
import { expand, reasonsOf, useCheck, useRunNodes } from "./server";
import { SaveProblem, StatusLine } from "./status";
import { YamlDialog } from "./yaml";

interface EditorPageProps {
  /** Id of a stored chain; none for a new one. */
  chain?: string;
}

export default function EditorPage({ chain }: EditorPageProps) {
  const [search] = useSearchParams();
  const template = search.get("template") ?? "";
  const parameters = search.get("parameters") ?? "";
  const palette = usePalette();
  const start = useQuery({
    queryKey: ["editor", chain ?? "", template, parameters],
    queryFn: () => readStart(chain, template, parameters),
    staleTime: Infinity,
    gcTime: 0,
  });
  const error = palette.error ?? start.error;
  if (error && !start.data) {
    return (
      <Page title="Chain editor">
        <ProblemNote error={error} onRetry={() => void Promise.all([palette.refetch(), start.refetch()])} />
      </Page>
    );
  }
  if (!palette.data || !start.data) {
    return (
      <Page title="Chain editor">
        <Loading />
      </Page>
    );
  }
  return (
    <ReactFlowProvider key={`${chain} ${template} ${parameters}`}>
      <Editor
        storedChain={start.data.stored}
        expansion={start.data.expanded}
        palette={palette.data}
        template={`${template}${parameters}`}
      />
    </ReactFlowProvider>
  );
}

/** A stored chain or a template, written out as nodes with ids and links. */
async function readStart(chain: string | undefined, template: string, parameters: string) {
  const storedChain = chain
    ? await dataOf(client.GET("/api/v1/chains/{chain}", { params: { path: { chain } } }))
    : undefined;
  if (storedChain) return { stored: storedChain, expanded: await expand({ target: storedChain.body }) };
  if (template) {
    return {
      stored: undefined,
      expanded: await expand({ target: template, parameters: JSON.parse(parameters || "{}") }),
    };
  }
  return { stored: undefined, expanded: null };
}

interface EditorProps {
  storedChain: ChainDetail | undefined;
  expansion: ExpandedChain | null;
  palette: Palette;
  template: string;
}

function Editor({ storedChain: first, expansion, palette, template }: EditorProps) {
  const flow = useReactFlow();
  const { allows } = useLogin();
  const readOnly = !allows("run");
  const [storedChain, setStoredChain] = useState(first);
  const [search, setSearch] = useSearchParams();
  const run = search.get("run") ?? "";
  // The store lives as long as the page of this chain, and begins with what an earlier visit kept.
  const [store, hadDraft] = useMemo(() => {
    const draftStore = new DraftStore(draftKey(first?.id ?? (template || "new")), draftOf(expansion), first?.etag);
    return [draftStore, draftStore.restore()] as const;
  }, [first?.id, first?.etag, template, expansion]);
  const [isRestored, setIsRestored] = useState(hadDraft);
  const state = useDraft(store);
  const { draft, version } = state;
  const check = useCheck(draft, hadDraft ? null : expansion);
  const runNodes = useRunNodes(run);
  const [selection, setSelection] = useState<ReadonlySet<string>>(new Set());
  const [clipboard, setClipboard] = useState<DraftNode[]>([]);
  const [showYaml, setShowYaml] = useState(false);

  const nodes = useMemo(() => graphNodes(draft, check.data, runNodes.data), [draft, check.data, runNodes.data]);
  const groups = useMemo(() => portGroups(palette), [palette]);
  const layoutAll = useCallback(() => {
    store.place(layoutOf(nodes, groups));
    window.setTimeout(() => void flow.fitView(FIT), 60);
  }, [store, nodes, groups, flow]);
  // A chain without places gets some, once the service has said what ports its nodes have.
  const isUnplaced =
    draft.nodes.length > 0 && draft.nodes.every((node) => !state.positions[node.id]) && check.isCurrent;
  useEffect(() => {
    if (isUnplaced) layoutAll();
  }, [isUnplaced, layoutAll]);
  // A chain that is arranged before is arranged again then: a node with its ports is taller.
  const arrangedDraft = useRef<Draft | null>(null);
  useEffect(() => {
    if (arrangedDraft.current !== draft || !check.isCurrent) return;
    arrangedDraft.current = null;
    layoutAll();
  }, [draft, check.isCurrent, layoutAll]);
  const arrange = () => {
    layoutAll();
    if (!check.isCurrent) arrangedDraft.current = draft;
  };

  const add = useCallback(
    (type: string, point?: { x: number; y: number }) => {
      const { draft: currentDraft, positions } = store.get();
      const id = freeId(currentDraft.nodes, type);
      const config = structuredClone(palette.nodes.find((node) => node.type === type)?.config ?? {});
      const position = point ?? nextPlace(positions);
      store.changeNodes("", [...currentDraft.nodes, { id, type, needs: [], config }], { ...positions, [id]: position });
      setSelection(new Set([id]));
      if (!point) window.setTimeout(() => void flow.fitView(FIT), 60);
    },
    [store, palette, flow],
  );
  const paste = (sources: DraftNode[]) => {
    const { draft: currentDraft, positions } = store.get();
    const newNodes = copies(currentDraft.nodes, sources);
    const movedNodes = newNodes.map((node, index) => {
      const from = positions[sources[index]!.id] ?? { x: 0, y: 0 };
      return [node.id, { x: from.x + 40, y: from.y + 60 }] as const;
    });
    store.changeNodes("", [...currentDraft.nodes, ...newNodes], { ...positions, ...Object.fromEntries(movedNodes) });
    setSelection(new Set(newNodes.map((node) => node.id)));
  };
  const selectedNodes = draft.nodes.filter((node) => selection.has(node.id));
  const actions: Record<string, () => void> = {
    z: () => store.undo(),
    Z: () => store.redo(),
    y: () => store.redo(),
    c: () => setClipboard(selectedNodes),
    v: () => paste(clipboard),
  };
  const onKeyDown = (event: KeyboardEvent) => {
    const inField = (event.target as HTMLElement).closest("input, textarea, select, dialog");
    const action = (event.ctrlKey || event.metaKey) && !inField ? actions[event.key] : undefined;
    if (!action || readOnly) return;
    // Text that is selected is the browser's to copy, and without a node what was copied before stays.
    if (event.key === "c" && (selectedNodes.length === 0 || document.getSelection()?.isCollapsed === false)) return;
    event.preventDefault();
    action();
  };

  // On the document: what had the focus may be gone, such as a node that was deleted by its key.
  const onPress = useEffectEvent(onKeyDown);
  useEffect(() => {
    const press = (event: KeyboardEvent) => onPress(event);
    document.addEventListener("keydown", press);
    return () => document.removeEventListener("keydown", press);
  }, []);

  const save = useSave(store, storedChain, setStoredChain, () => setIsRestored(false));
  const start = useRun(setSearch, save);
  // An empty canvas shows the next step; that it would not run is known.
  const reasons = draft.nodes.length > 0 ? reasonsOf(check.data) : [];
  const questions = (check.data?.check.questions ?? []) as unknown as ProblemReason[];
  const startQuestions = start.variables?.draft === draft ? questionsOf(start.error) : [];
  const question = useQuestion(questions.length > 0 ? questions : startQuestions);
  const request = { storedChain, draft, dirty: state.dirty, yes: question.yes };
  const [only] = selectedNodes.length === 1 ? selectedNodes : [];
  return (
    <Page
      title={storedChain ? `${draft.name ?? storedChain.name}` : "New chain"}
      actions={
        <>
          <button type="button" disabled={readOnly || state.past.length === 0} onClick={() => store.undo()}>
            Undo
          </button>
          <button type="button" disabled={readOnly || state.future.length === 0} onClick={() => store.redo()}>
            Redo
          </button>
          <button type="button" disabled={selectedNodes.length === 0} onClick={() => setClipboard(selectedNodes)}>
            Copy
          </button>
          <button type="button" disabled={readOnly || clipboard.length === 0} onClick={() => paste(clipboard)}>
            Paste
          </button>
          <button
            type="button"
            disabled={readOnly || selectedNodes.length === 0}
            onClick={() => store.changeNodes("", removeNodes(draft.nodes, selection))}
          >
            Delete
          </button>
          <button type="button" disabled={draft.nodes.length === 0} onClick={arrange}>
            Arrange
          </button>
          <button type="button" onClick={() => setShowYaml(true)}>
            YAML
          </button>
          <button
            type="button"
            disabled={
              readOnly || save.isPending || draft.nodes.length === 0 || (storedChain !== undefined && !state.dirty)
            }
            aria-busy={save.isPending}
            onClick={() => save.mutate(undefined)}
          >
            Save
          </button>
          <button
            type="button"
            className="primary"
            disabled={readOnly || start.isPending || draft.nodes.length === 0 || question.isOpen}
            aria-busy={start.isPending}
            onClick={() => start.mutate(request)}
          >
            {state.dirty || !storedChain ? "Save and run" : "Run"}
          </button>
        </>
      }
    >
      <div className="editor-page">
        <StatusLine
          storedChain={storedChain}
          dirty={state.dirty}
          isRestored={isRestored}
          check={check.data}
          isCurrent={check.isCurrent}
          isOpen={question.isOpen}
          run={run}
          runNodes={runNodes.data}
          isEmpty={draft.nodes.length === 0}
          onDiscard={() => {
            store.open(draftOf(expansion));
            setIsRestored(false);
          }}
          onCloseRun={() => setSearch({})}
        />
        {check.error && <ProblemNote error={check.error} onRetry={() => void check.refetch()} />}
        {save.error && (
          <SaveProblem error={save.error} storedChain={storedChain} onOverwrite={(etag) => save.mutate(etag)} />
        )}
        {start.error && !save.error && questionsOf(start.error).length === 0 && <ProblemNote error={start.error} />}
        {draft.nodes.length > 0 && !readOnly && <QuestionNote question={question} />}
        {runNodes.error && <ProblemNote error={runNodes.error} />}
        <div className="editor">
          <PaletteList palette={palette} onAdd={add} readOnly={readOnly} />
          <Canvas
            store={store}
            nodes={nodes}
            groups={groups}
            version={version}
            selection={selection}
            onSelect={setSelection}
            onAdd={add}
            readOnly={readOnly}
          />
          <aside className="editor-inspector" aria-label="Selected node">
            {only ? (
              <Inspector
                store={store}
                node={only}
                expansion={check.data}
                palette={palette}
                run={run && runNodes.data?.nodes.some((node) => node.id === only.id) ? run : ""}
                onRunFrom={(from) => start.mutate({ ...request, from })}
                isStarting={start.isPending || question.isOpen}
                onSelect={setSelection}
                readOnly={readOnly}
              />
            ) : (
              <ChainSettings store={store} draft={draft} reasons={reasons} readOnly={readOnly} />
            )}
          </aside>
        </div>
        {reasons.length > 0 && (
          <section className="panel" aria-label="Problems">
            <h2>Problems ({reasons.length})</h2>
            <Reasons reasons={reasons} onSelect={(node) => setSelection(new Set([node]))} />
          </section>
        )}
      </div>
      <CheckNotes notes={check.data?.check.notes} />
      <ChainEstimate draft={draft} />
      {showYaml && (
        <YamlDialog
          name={draft.name ?? "chain"}
          text={check.data?.text ?? ""}
          readOnly={readOnly}
          onClose={() => setShowYaml(false)}
          onImport={(importedChain) => {
            store.change("", draftOf(importedChain), {});
            setShowYaml(false);
          }}
        />
      )}
    </Page>
  );
}

const draftOf = (expansion: ExpandedChain | null): Draft =>
  expansion ? (structuredClone(expansion.spec) as unknown as Draft) : { name: "chain", nodes: [] };

function graphNodes(
  draft: Draft,
  expansion: ExpandedChain | undefined,
  run: { nodes: readonly Pick<RunNode, "id" | "state" | "fraction" | "outputs">[] } | undefined,
): GraphNode[] {
  const byId = new Map(expansion?.nodes.map((node) => [node.id, node]));
  const states = new Map(run?.nodes.map((node) => [node.id, node]));
  const problems = new Map<string, number>();
  for (const reason of reasonsOf(expansion))
    if (reason.node) problems.set(reason.node, (problems.get(reason.node) ?? 0) + 1);
  return draft.nodes.map((node) => {
    const answer = byId.get(node.id);
    const match = answer?.type === node.type ? answer : undefined;
    return {
      id: node.id,
      type: node.type,
      needs: node.needs,
      takes: match?.takes ?? [],
      makes: match?.makes ?? [],
      inputs: match?.inputs ?? {},
      valid: match?.valid ?? true,
      problems: problems.get(node.id) ?? 0,
      summary: match?.summary ?? "",
      outputs: states.get(node.id)?.outputs,
      state: states.get(node.id)?.state,
      fraction: states.get(node.id)?.fraction,
    };
  });
}

/** To the right of every other node. */
function nextPlace(positions: Record<string, Place>): Place {
  const last = Object.values(positions).sort((path, another) => another.x - path.x)[0];
  return last ? { x: last.x + NODE_WIDTH + 40, y: last.y } : { x: 0, y: 0 };
}

function layoutOf(nodes: readonly GraphNode[], groups: PortGroups) {
  return layOut(
    nodes.map((node) => {
      const data = nodeDataOf(node, groups);
      return { id: node.id, needs: node.needs, takes: data.takes.length, makes: data.makes.length };
    }),
  );
}
