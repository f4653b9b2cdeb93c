// The line above the canvas: the stored revision, whether the draft would run, how far its run is; and a refused save.

import { ExternalLink } from "../../../components/external";
import { useQuery } from "@tanstack/react-query";
import { Link } from "wouter";
import { client, dataOf, Problem } from "../../../api/client";
import { useLogin } from "../../../api/login";
import type { ChainDetail, ExpandedChain, RunNodes } from "../../../api/schema";
import { ProblemNote } from "../../../components/notes";
import { StateBadge } from "../../../components/state";
import { JobActions } from "../../jobs/actions";

const countOf = (problems: number) => (problems === 1 ? "1 problem" : `${problems} problems`);

interface StatusLineProps {
  storedChain: ChainDetail | undefined;
  dirty: boolean;
  isRestored: boolean;
  check: ExpandedChain | undefined;
  isCurrent: boolean;
  /** Whether a run has to be allowed first. */
  isOpen: boolean;
  run: string;
  runNodes: RunNodes | undefined;
  isEmpty: boolean;
  onDiscard: () => void;
  onCloseRun: () => void;
}

export function StatusLine({
  storedChain,
  dirty,
  isRestored,
  check,
  isCurrent,
  isOpen,
  run,
  runNodes,
  isEmpty,
  onDiscard,
  onCloseRun,
}: StatusLineProps) {
  const { allows } = useLogin();
  const isOther = isCurrent && runNodes?.digest && check?.check.digest && runNodes.digest !== check.check.digest;
  return (
    <div className="actions" role="status" aria-label="State of the draft">
      <span>
        {storedChain ? (
          <Link href={`/chains/${storedChain.id}`}>
            {storedChain.name}, revision {storedChain.revision}
          </Link>
        ) : (
          "not stored yet"
        )}
        {dirty ? ", changed" : ""}
      </span>
      {storedChain && !("nodes" in storedChain.body) && (
        <span className="quiet">
          It is stored as{" "}
          {"template" in storedChain.body ? `the call of ${String(storedChain.body.template)}` : "a job"}; Save stores
          its nodes.
        </span>
      )}
      {isRestored && (
        <span>
          Unsaved changes of an earlier visit are shown.{" "}
          <button type="button" onClick={onDiscard}>
            Discard them
          </button>
        </span>
      )}
      {!isEmpty && (
        <span className={!check?.check.ok ? "state-failed" : isOpen ? undefined : "state-completed"}>
          {!isCurrent
            ? "checking …"
            : check?.check.ok
              ? isOpen
                ? "○ would run here, if you allow it"
                : "✓ would run here"
              : `✕ ${countOf(check?.check.reasons?.length ?? 0)}`}
        </span>
      )}
      {run && (
        <span className="actions">
          <span>
            Run <Link href={`/jobs/${run}`}>{run}</Link>
            {isOther && " (of another version of this chain)"}
          </span>
          {runNodes && <StateBadge state={runNodes.state} detail={runNodes.detail} />}
          {runNodes?.url && <ExternalLink url={runNodes.url}>Prefect</ExternalLink>}
          {runNodes && allows("run") && <JobActions job={run} state={runNodes.state} />}
          <button type="button" onClick={onCloseRun}>
            Hide the run
          </button>
        </span>
      )}
    </div>
  );
}

/** Why the draft was not stored; where somebody else was faster, what can be done about it. */
export function SaveProblem({
  error,
  storedChain,
  onOverwrite,
}: {
  error: Error;
  storedChain: ChainDetail | undefined;
  onOverwrite: (etag: string) => void;
}) {
  const newest = useQuery({
    queryKey: ["chains", storedChain?.id, "etag"],
    queryFn: () => dataOf(client.GET("/api/v1/chains/{chain}", { params: { path: { chain: storedChain!.id } } })),
    enabled: error instanceof Problem && error.status === 409 && storedChain !== undefined,
    gcTime: 0,
  });
  return (
    <>
      <ProblemNote error={error} />
      {newest.data && (
        <div className="actions">
          <button type="button" onClick={() => window.location.reload()}>
            Read revision {newest.data.revision}
          </button>
          <button type="button" className="danger" onClick={() => onOverwrite(newest.data.etag)}>
            Store mine as revision {newest.data.revision + 1}
          </button>
        </div>
      )}
    </>
  );
}
