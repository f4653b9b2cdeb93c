// The curve of a job that is running. A file of its own, so that the overview is there before the plots are.

import { Curve } from "../../components/curve";
import { seriesOf, useCurves } from "../jobs/curves";

const HEIGHT = 160;

export default function RunningCurve({ job }: { job: string }) {
  const { curves } = useCurves(job, false);
  const series = curves.flatMap((curve) => seriesOf(curve, "loss", curve.node) ?? []);
  return series.length > 0 ? <Curve series={series} xLabel="Step" yLabel="Loss" height={HEIGHT} /> : null;
}
