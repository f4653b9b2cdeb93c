// The curves of one job or several, with one switch for all of them.

import { useQuery } from "@tanstack/react-query";
import { useMemo, useState, type ReactNode } from "react";
import { client, dataOf } from "../../api/client";
import { Curve, type CurveMark, type CurveSeries } from "../../components/curve";
import { formatNumber } from "../../components/format";
import {
  AXES,
  curveOf,
  metricsOf,
  placesOn,
  seriesOf,
  titleOf,
  valueOf,
  type Axis,
  type Metric,
  type NodeCurve,
} from "./curves";

export interface CurveStyle {
  log: boolean;
  smoothing: number;
  axis: Axis;
  /** Metrics that are not shown. */
  hidden: readonly Metric[];
}

const STORED = "trainyard.curves";

/** How curves are drawn, remembered in this browser. `metrics` are those that may be hidden, `axes` those there are. */
export function useCurveStyle(
  metrics: readonly Metric[] = [],
  axes: readonly Axis[] = ["step"],
): [CurveStyle, ReactNode] {
  const [style, setStyle] = useState<CurveStyle>(() => {
    const savedCharts = JSON.parse(localStorage.getItem(STORED) ?? "{}");
    return {
      log: savedCharts.log === true,
      smoothing: Number(savedCharts.smoothing) || 0,
      axis: savedCharts.axis in AXES ? savedCharts.axis : "step",
      hidden: Array.isArray(savedCharts.hidden) ? savedCharts.hidden : [],
    };
  });
  const set = (next: CurveStyle) => {
    localStorage.setItem(STORED, JSON.stringify(next));
    setStyle(next);
  };
  const axis = axes.includes(style.axis) ? style.axis : "step";
  const toggle = (metric: Metric, isShown: boolean) =>
    set({ ...style, hidden: isShown ? style.hidden.filter((name) => name !== metric) : [...style.hidden, metric] });
  const controls = (
    <>
      {axes.length > 1 && (
        <label>
          By{" "}
          <select
            aria-label="Axis of the curves"
            value={axis}
            onChange={(event) => set({ ...style, axis: event.target.value as Axis })}
          >
            {axes.map((entry) => (
              <option key={entry} value={entry}>
                {entry}
              </option>
            ))}
          </select>
        </label>
      )}
      {metrics.length > 1 && (
        <details className="picker">
          <summary>Metrics</summary>
          <div>
            {metrics.map((metric) => (
              <label key={metric}>
                <input
                  type="checkbox"
                  checked={!style.hidden.includes(metric)}
                  onChange={(event) => toggle(metric, event.target.checked)}
                />{" "}
                {titleOf(metric)}
              </label>
            ))}
          </div>
        </details>
      )}
      <label>
        <input type="checkbox" checked={style.log} onChange={(event) => set({ ...style, log: event.target.checked })} />{" "}
        Log scale
      </label>
      <label>
        Smoothing{" "}
        <input
          type="range"
          min="0"
          max="0.99"
          step="0.01"
          value={style.smoothing}
          onChange={(event) => set({ ...style, smoothing: Number(event.target.value) })}
        />{" "}
        {style.smoothing.toFixed(2)}
      </label>
    </>
  );
  return [{ ...style, axis }, controls];
}

/** Trainer -> epochs of one step; none where the length is given in steps. */
export type EpochsPerStep = Readonly<Record<string, number>>;

interface ChartProps {
  job: string;
  curves: readonly NodeCurve[];
  metric: Metric;
  style: CurveStyle;
  epochs: EpochsPerStep;
}

/** Drawn in one picture: what the rows of the training say, and what held-out rows say. */
const WITH: Record<Metric, readonly Metric[]> = { loss: ["loss", "eval_loss"] };
const DRAWN_ELSEWHERE = ["eval_loss"];

/** Metrics that have a chart of their own. */
export const chartsOf = (curves: readonly NodeCurve[]): Metric[] => {
  const metrics = metricsOf(curves);
  return metrics.filter((metric) => !DRAWN_ELSEWHERE.includes(metric) || !metrics.includes("loss"));
};

/** One metric of all trainers of a job. Zooming into a curve of few points reads more of that part. */
function Chart({ job, curves, metric, style, epochs }: ChartProps) {
  const [range, setRange] = useState<readonly [number, number] | null>(null);
  const isByStep = style.axis === "step";
  const isCoarse = isByStep && curves.some((curve) => curve.stepsPerPoint > 1);
  const finer = useQuery({
    queryKey: ["metrics", job, range],
    queryFn: async () => {
      const query = { max_points: 2000, since_step: Math.floor(range![0]), until_step: Math.ceil(range![1]) };
      const result = await dataOf(
        client.GET("/api/v1/jobs/{job}/metrics", { params: { path: { job }, query: query as object } }),
      );
      return result.trainings.map(curveOf);
    },
    enabled: range !== null && isCoarse,
  });
  const visible = range && isCoarse && finer.data ? finer.data : curves;
  const series = useMemo(
    () =>
      visible.flatMap((entry) => {
        const axis = placesOn(style.axis, entry, epochs[entry.node] ?? null) ?? undefined;
        return (WITH[metric] ?? [metric]).flatMap((part): CurveSeries[] => {
          const title = titleOf(part);
          const name =
            visible.length > 1 ? (part === metric ? entry.node : `${entry.node}, ${title.toLowerCase()}`) : title;
          const result = seriesOf(entry, part, name, axis);
          return result ? [result] : [];
        });
      }),
    [visible, metric, style.axis, epochs],
  );
  const marks = useMemo(
    () => (metric === "loss" ? visible.flatMap((entry) => bestOf(entry, style.axis, epochs)) : []),
    [visible, metric, style.axis, epochs],
  );
  if (series.length === 0) return null;
  return (
    <Curve
      key={style.axis}
      series={series}
      xLabel={AXES[style.axis]}
      yLabel={titleOf(metric)}
      log={style.log}
      smoothing={style.smoothing}
      marks={marks}
      onZoom={isByStep ? setRange : undefined}
    />
  );
}

/** The step with the lowest loss on held-out rows. */
function bestStep(curve: NodeCurve): number | null {
  let best: number | null = null;
  curve.points.forEach((point, index) => {
    const value = valueOf(point, "eval_loss");
    if (value != null && (best == null || value < valueOf(curve.points[best]!, "eval_loss")!)) best = index;
  });
  return best;
}

function bestOf(curve: NodeCurve, axis: Axis, epochs: EpochsPerStep): CurveMark[] {
  const best = bestStep(curve);
  const positions = placesOn(axis, curve, epochs[curve.node] ?? null);
  if (best == null || !positions) return [];
  const { step } = curve.points[best]!;
  const value = formatNumber(valueOf(curve.points[best]!, "eval_loss"));
  return [{ x: positions[best]!, label: `best held-out loss ${value} at step ${formatNumber(step)}` }];
}

export function Charts({ job, curves, style, epochs }: Omit<ChartProps, "metric">) {
  return (
    <div className="curves">
      {chartsOf(curves)
        .filter((metric) => !style.hidden.includes(metric))
        .map((metric) => (
          <Chart key={metric} job={job} curves={curves} metric={metric} style={style} epochs={epochs} />
        ))}
    </div>
  );
}
