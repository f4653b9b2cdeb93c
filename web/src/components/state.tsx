// The state of a job, run or node: a word with a colour and a shape, so that the colour is never the only sign.

const SHAPES: Record<string, string> = {
  pending: "○",
  running: "◐",
  paused: "‖",
  completed: "●",
  failed: "✕",
  canceled: "–",
  cached: "◆",
  reused: "◆",
  skipped: "·",
};

export function StateBadge({ state, detail = "" }: { state: string; detail?: string }) {
  return (
    <span className={`state state-${state}`}>
      <span aria-hidden="true">{SHAPES[state] ?? "○"}</span> {state}
      {detail && `, ${detail}`}
    </span>
  );
}

export function Progress({ value, max, label }: { value: number; max: number | null | undefined; label: string }) {
  if (!max) return null;
  return <progress value={value} max={max} aria-label={label} />;
}
