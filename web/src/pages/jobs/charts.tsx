// The curves of one job or several, with one switch for all of them.

import { useQuery } from "@tanstack/react-query";
import { useMemo, useState, type ReactNode } from "react";
import { client, dataOf } from "../../api/client";
import { Curve, type CurveSeries } from "../../components/curve";
import { curveOf, METRICS, seriesOf, type Metric, type NodeCurve } from "./curves";

export interface CurveStyle {
  log: boolean;
  smoothing: number;
}

/** Logarithmic values and smoothing, remembered in this browser. */
export function useCurveStyle(): [CurveStyle, ReactNode] {
  const [style, setStyle] = useState<CurveStyle>(() => {
    const stored = JSON.parse(localStorage.getItem("trainyard.curves") ?? "{}");
    return { log: stored.log === true, smoothing: Number(stored.smoothing) || 0 };
  });
  const set = (next: CurveStyle) => {
    localStorage.setItem("trainyard.curves", JSON.stringify(next));
    setStyle(next);
  };
  const controls = (
    <>
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
  return [style, controls];
}

interface ChartProps {
  job: string;
  curves: readonly NodeCurve[];
  metric: Metric;
  style: CurveStyle;
}

/** One metric of all trainers of a job. Zooming into a curve of few points reads more of that part. */
function Chart({ job, curves, metric, style }: ChartProps) {
  const [range, setRange] = useState<readonly [number, number] | null>(null);
  const isCoarse = curves.some((one) => one.stepsPerPoint > 1);
  const finer = useQuery({
    queryKey: ["metrics", job, range],
    queryFn: async () => {
      const query = { max_points: 2000, since_step: Math.floor(range![0]), until_step: Math.ceil(range![1]) };
      const found = await dataOf(
        client.GET("/api/v1/jobs/{job}/metrics", { params: { path: { job }, query: query as object } }),
      );
      return found.trainings.map(curveOf);
    },
    enabled: range !== null && isCoarse,
  });
  const shown = range && finer.data ? finer.data : curves;
  const series = useMemo(
    () =>
      shown
        .map((one) => seriesOf(one, metric, shown.length > 1 ? one.node : METRICS[metric]))
        .filter((one): one is CurveSeries => one !== null),
    [shown, metric],
  );
  if (series.length === 0) return null;
  return (
    <Curve
      series={series}
      xLabel="Step"
      yLabel={METRICS[metric]}
      log={style.log}
      smoothing={style.smoothing}
      onZoom={setRange}
    />
  );
}

export function Charts({ job, curves, style }: Omit<ChartProps, "metric">) {
  return (
    <div className="curves">
      {(Object.keys(METRICS) as Metric[])
        .filter((metric) => curves.some((one) => one.points.some((point) => point[metric] != null)))
        .map((metric) => (
          <Chart key={metric} job={job} curves={curves} metric={metric} style={style} />
        ))}
    </div>
  );
}
