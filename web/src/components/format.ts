// Numbers and times as text. One place, so that the same value reads the same on every page.

/** Seconds of the epoch in the reader's time zone. */
export const formatTime = (seconds: number | null | undefined): string =>
  seconds == null
    ? ""
    : new Date(seconds * 1000).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });

/** `Nov 28, 04:50 AM`: the time by which somebody knows one of several runs of a template. */
export const formatShortTime = (seconds: number | null | undefined): string =>
  seconds == null
    ? ""
    : new Date(seconds * 1000).toLocaleString(undefined, {
        month: "short",
        day: "numeric",
        hour: "2-digit",
        minute: "2-digit",
      });

/** A result as a list names it: its template or chain, when it ended, and its node. */
export const titleOfResult = (result: { run_name: string; ended: number; node?: string }): string =>
  [result.run_name || "run", formatShortTime(result.ended), result.node].filter(Boolean).join(", ");

/** `73` is `1 min 13 s`; `3600` is `1 h`. */
export function formatDuration(seconds: number | null | undefined): string {
  if (seconds == null) return "";
  if (seconds > 0 && seconds < 0.05) return "< 0.1 s";
  const whole = Math.round(seconds); // before it is divided: 119.7 s is 2 min, never 1 min 60 s
  if (whole < 60) return `${seconds > 0 && seconds < 9.95 ? seconds.toFixed(1) : whole} s`;
  const minutes = Math.floor(whole / 60);
  const [large, small] =
    minutes < 60
      ? [`${minutes} min`, whole % 60 && `${whole % 60} s`]
      : [`${Math.floor(minutes / 60)} h`, minutes % 60 && `${minutes % 60} min`];
  return small ? `${large} ${small}` : large!;
}

/** `1536` is `1.5 KiB`. */
export function formatBytes(bytes: number | null | undefined): string {
  if (bytes == null) return "";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let value = bytes;
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit && value < 100 ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}

/** A metric with at most `digits` significant digits, as Python's `%g`: `0.00012`, `2.304`, `1e-05`. */
export function formatNumber(value: number | null | undefined, digits = 4): string {
  if (value == null) return "";
  if (!Number.isFinite(value)) return String(value);
  if (Number.isInteger(value)) return value.toLocaleString("en-US");
  return Number(value.toPrecision(digits)).toString();
}

export const formatPercent = (share: number | null | undefined): string =>
  share == null ? "" : `${(share * 100).toFixed(1)} %`;

/** `learning_rate` is `Learning rate`. */
export function labelOf(name: string): string {
  const text = name.replaceAll("_", " ");
  return text.charAt(0).toUpperCase() + text.slice(1);
}
