// The curves of a job as they grow: what there is in few points first, then every step as it is written.

import { useMemo, useRef, useState } from "react";
import type { Point, TrainingCurve } from "../../api/schema";
import { useEventStream, type StreamState } from "../../api/streams";
import type { CurveSeries } from "../../components/curve";
import { labelOf } from "../../components/format";

/** Metric -> its title; the order in which the pages show them. */
export const METRICS = {
  loss: "Loss",
  eval_loss: "Evaluation loss",
  learning_rate: "Learning rate",
  grad_norm: "Gradient norm",
  tokens_per_second: "Tokens per second",
  reward: "Reward",
  eval_reward_accuracy: "Evaluation reward accuracy",
  eval_reward_margin: "Evaluation reward margin",
  eval_reward: "Evaluation reward",
} as const;
export type Metric = string;

const NO_METRIC = ["step", "time", "epoch", "tokens"];

/** Every metric that the steps of some trainers have, those with a title first. */
export function metricsOf(curves: readonly NodeCurve[]): Metric[] {
  const names = new Set(
    curves.flatMap((curve) =>
      curve.points.flatMap((point) => Object.keys(point).filter((name) => valueOf(point, name) != null)),
    ),
  );
  const titledMetrics = Object.keys(METRICS).filter((name) => names.delete(name));
  return [...titledMetrics, ...[...names].sort()].filter((name) => !NO_METRIC.includes(name));
}

export const titleOf = (metric: Metric): string => (METRICS as Record<string, string>)[metric] ?? labelOf(metric);

export const valueOf = (point: Point, metric: Metric): number | null => {
  const value = (point as unknown as Record<string, unknown>)[metric];
  return typeof value === "number" ? value : null;
};

/** What the horizontal axis counts: -> its label. */
export const AXES = { step: "Step", epoch: "Epoch", tokens: "Tokens", time: "Minutes" } as const;
export type Axis = keyof typeof AXES;

const SECONDS = 60;

/** Where each point is on an axis. Tokens are summed over the rate of each step; null where it cannot be known. */
export function placesOn(axis: Axis, curve: NodeCurve, epochsPerStep: number | null): number[] | null {
  const { points } = curve;
  if (axis === "step") return points.map((point) => point.step);
  const values = points.map((point) => valueOf(point, axis));
  if (axis !== "time" && values.length > 0 && values.every((entry) => entry != null)) return values as number[];
  if (axis === "epoch") return epochsPerStep == null ? null : points.map((point) => point.step * epochsPerStep);
  const first = points[0]?.time ?? 0;
  if (axis === "time") return points.map((point) => ((point.time ?? first) - first) / SECONDS);
  if (points.every((point) => point.tokens_per_second == null)) return null;
  let [sum, lastTime] = [0, first];
  return points.map((point) => {
    const time = point.time ?? lastTime;
    sum += Math.max(0, time - lastTime) * (point.tokens_per_second ?? 0);
    lastTime = time;
    return sum;
  });
}

/** Above this number of points the curve is requested again, with fewer. */
const MOST_POINTS = 4000;

type Columns = Record<string, (number | null)[]>;

export interface NodeCurve {
  node: string;
  stepsPerPoint: number;
  points: Point[];
  low: Columns;
  high: Columns;
}

interface NewPoints {
  node: string;
  points: (Partial<Point> & { restarted_from?: number | null })[];
}

export const curveOf = (event: TrainingCurve): NodeCurve => ({
  node: event.node,
  stepsPerPoint: event.steps_per_point ?? 1,
  points: event.points,
  low: event.low ?? {},
  high: event.high ?? {},
});

/** The curve with new steps; a restart removes the steps beyond its checkpoint. */
function extend(curve: NodeCurve, newPoints: NewPoints["points"]): NodeCurve {
  let points = [...curve.points];
  for (const { restarted_from: from, ...point } of newPoints) {
    if (from !== undefined) points = points.filter((entry) => from !== null && entry.step <= from);
    else {
      while (points.length > 0 && points.at(-1)!.step >= point.step!) points.pop();
      points.push(point as Point);
    }
  }
  return { ...curve, points };
}

/** Follow the curves of every trainer of a job. `over`: the job has ended; a resume opens the stream again. */
export function useCurves(job: string, isEnded: boolean): { curves: NodeCurve[]; state: StreamState } {
  const [curves, setCurves] = useState<Record<string, NodeCurve>>({});
  const [part, setPart] = useState(0);
  const requestCount = useRef(0);
  const path = `/jobs/${encodeURIComponent(job)}/metrics#${isEnded ? "over" : "live"}-${part}`;
  const state = useEventStream(path, {
    curve: (event: TrainingCurve) => setCurves((previous) => ({ ...previous, [event.node]: curveOf(event) })),
    points: (event: NewPoints) =>
      setCurves((previous) => {
        const current = previous[event.node];
        if (!current) return previous;
        const next = extend(current, event.points);
        if (next.points.length > MOST_POINTS && requestCount.current === part) {
          requestCount.current = part + 1;
          window.setTimeout(() => setPart(part + 1));
        }
        return { ...previous, [event.node]: next };
      }),
    end: () => undefined,
  });
  return { curves: useMemo(() => Object.values(curves), [curves]), state };
}

/** A metric of a curve as `Curve` draws it: only the steps that have it; empty if none has. */
export function seriesOf(
  curve: NodeCurve,
  metric: Metric,
  name = curve.node,
  axis: readonly number[] = curve.points.map((point) => point.step),
): CurveSeries | null {
  const indices = curve.points.flatMap((point, index) => (valueOf(point, metric) != null ? [index] : []));
  if (indices.length === 0) return null;
  const pick = (values: (number | null)[] | undefined) => values && indices.map((index) => values[index] ?? null);
  const [low, high] = [pick(curve.low[metric]), pick(curve.high[metric])];
  return {
    name,
    x: indices.map((index) => axis[index]!),
    y: indices.map((index) => valueOf(curve.points[index]!, metric)),
    ...(low && high ? { low, high } : {}),
  };
}
