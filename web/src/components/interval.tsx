// A mean with its interval, as numbers and as a bar around zero: where it lies is the verdict, the colour repeats it.

import "../styles/records.css";
import { formatNumber } from "./format";

export interface IntervalValue {
  mean: number | null;
  low?: number | null;
  high?: number | null;
  cases?: number;
}

const sign = (value: number): string => `${value > 0 ? "+" : ""}${formatNumber(value)}`;

/** `+5.318 [+5.163, +5.469]`, as in the report. */
export function intervalText({ mean, low, high }: IntervalValue): string {
  if (mean == null) return "";
  return low == null || high == null
    ? `${sign(mean)} (one case: no interval)`
    : `${sign(mean)} [${sign(low)}, ${sign(high)}]`;
}

/** Whether the whole interval is on one side of zero. */
function verdictOf({ low, high }: IntervalValue): "good" | "bad" | "unclear" {
  if (low != null && low > 0) return "good";
  return high != null && high < 0 ? "bad" : "unclear";
}

const WORDS = { good: "better", bad: "worse", unclear: "not clear" };
const [WIDTH, HEIGHT] = [160, 14];

/** `scale` is the largest value that the bars next to each other have to show; by default that of this one. */
export function Interval({ value, scale }: { value: IntervalValue; scale?: number }) {
  if (value.mean == null) return null;
  const verdict = verdictOf(value);
  const [low, high] = [value.low ?? value.mean, value.high ?? value.mean];
  const most = scale || Math.max(Math.abs(low), Math.abs(high)) || 1;
  const x = (value: number) => WIDTH / 2 + (Math.max(-1, Math.min(1, value / most)) * (WIDTH - 8)) / 2;
  return (
    <span className={`interval interval-${verdict}`}>
      <span className="range-text">{intervalText(value)}</span>{" "}
      <span className="bar-and-word">
        <svg width={WIDTH} height={HEIGHT} aria-hidden="true" focusable="false">
          <line x1={WIDTH / 2} x2={WIDTH / 2} y1="0" y2={HEIGHT} className="zero" />
          <line x1={x(low)} x2={x(high)} y1={HEIGHT / 2} y2={HEIGHT / 2} className="range" />
          <circle cx={x(value.mean)} cy={HEIGHT / 2} r="4" className="mean" />
        </svg>{" "}
        {WORDS[verdict]}
      </span>
    </span>
  );
}
