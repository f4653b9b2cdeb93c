// The curves of a job as they grow: what there is in few points first, then every step as it is written.

import { useMemo, useRef, useState } from "react";
import type { Point, TrainingCurve } from "../../api/schema";
import { useEventStream, type StreamState } from "../../api/streams";
import type { CurveSeries } from "../../components/curve";

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
} as const;
export type Metric = keyof typeof METRICS;

/** Above so many points the curve is asked for again, in fewer. */
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

export const curveOf = (given: TrainingCurve): NodeCurve => ({
  node: given.node,
  stepsPerPoint: given.steps_per_point ?? 1,
  points: given.points,
  low: given.low ?? {},
  high: given.high ?? {},
});

/** The curve with new steps; a restart removes what is beyond its checkpoint. */
function extend(curve: NodeCurve, added: NewPoints["points"]): NodeCurve {
  let points = [...curve.points];
  for (const { restarted_from: from, ...point } of added) {
    if (from !== undefined) points = points.filter((one) => from !== null && one.step <= from);
    else {
      while (points.length > 0 && points.at(-1)!.step >= point.step!) points.pop();
      points.push(point as Point);
    }
  }
  return { ...curve, points };
}

/** Follow the curves of every trainer of a job. `over`: the job has ended; a resume opens the stream again. */
export function useCurves(job: string, over: boolean): { curves: NodeCurve[]; state: StreamState } {
  const [curves, setCurves] = useState<Record<string, NodeCurve>>({});
  const [part, setPart] = useState(0);
  const asked = useRef(0);
  const path = `/jobs/${encodeURIComponent(job)}/metrics#${over ? "over" : "live"}-${part}`;
  const state = useEventStream(path, {
    curve: (given: TrainingCurve) => setCurves((before) => ({ ...before, [given.node]: curveOf(given) })),
    points: (given: NewPoints) =>
      setCurves((before) => {
        const own = before[given.node];
        if (!own) return before;
        const next = extend(own, given.points);
        if (next.points.length > MOST_POINTS && asked.current === part) {
          asked.current = part + 1;
          window.setTimeout(() => setPart(part + 1));
        }
        return { ...before, [given.node]: next };
      }),
    end: () => undefined,
  });
  return { curves: useMemo(() => Object.values(curves), [curves]), state };
}

/** A metric of a curve as `Curve` draws it: only the steps that have it; empty if none has. */
export function seriesOf(curve: NodeCurve, metric: Metric, name = curve.node): CurveSeries | null {
  const places = curve.points.flatMap((point, index) => (point[metric] != null ? [index] : []));
  if (places.length === 0) return null;
  const pick = (values: (number | null)[] | undefined) => values && places.map((index) => values[index] ?? null);
  const [low, high] = [pick(curve.low[metric]), pick(curve.high[metric])];
  return {
    name,
    x: places.map((index) => curve.points[index]!.step),
    y: places.map((index) => curve.points[index]![metric] ?? null),
    ...(low && high ? { low, high } : {}),
  };
}
