// Curves over a common axis: hover shows values, dragging or the keys zoom, a double click shows everything again.

import { useEffect, useEffectEvent, useMemo, useRef, useState } from "react";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import "./curve.css";
import { formatBytes, formatNumber } from "./format";

export interface CurveSeries {
  name: string;
  x: readonly number[];
  y: readonly (number | null)[];
  /** The smallest and largest value behind each point, drawn as a band. */
  low?: readonly (number | null)[];
  high?: readonly (number | null)[];
}

export interface CurveProps {
  series: readonly CurveSeries[];
  xLabel: string;
  yLabel: string;
  /** Logarithmic values; values of 0 or less are left out. */
  log?: boolean;
  /** Weight of what came before in the moving average, 0 (none) to below 1. */
  smoothing?: number;
  height?: number;
  /** The part that is shown; null for everything. For a page that asks for more points of that part. */
  onZoom?: (range: readonly [number, number] | null) => void;
  /** Vertical lines, such as at the best step. */
  marks?: readonly CurveMark[];
}

export interface CurveMark {
  x: number;
  label: string;
}

const COLOURS = ["--accent", "--port-model", "--good", "--port-adapter", "--warn"];
const DASHES = [[], [8, 4], [2, 3], [12, 4, 2, 4], [5, 5]];

/** The dash of a line. Every round of the colours begins with the next dash, so that 25 lines differ. */
const dashOf = (index: number) => DASHES[(index + Math.floor(index / COLOURS.length)) % DASHES.length];
const ZOOM_STEP = 0.25;

/** The moving average with its start corrected, as TensorBoard has it. */
export function smooth(values: readonly (number | null)[], weight: number): (number | null)[] {
  let sum = 0;
  let share = 0;
  return values.map((value) => {
    if (value == null) return null;
    sum = sum * weight + value * (1 - weight);
    share = share * weight + (1 - weight);
    return sum / share;
  });
}

export function Curve(props: CurveProps) {
  const { series, xLabel, yLabel, log = false, smoothing = 0, height = 240, onZoom, marks = NO_MARKS } = props;
  const frame = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const zoom = useRef<readonly [number, number] | null>(null);
  const [isZoomed, setIsZoomed] = useState(false);
  const theme = useTheme();
  const data = useMemo(() => alignSeries(series, log, smoothing), [series, log, smoothing]);
  // A new plot only when its lines change; a new point is only new data.
  const shape = JSON.stringify([
    series.map((curve) => [curve.name, Boolean(curve.low)]),
    xLabel,
    yLabel,
    log,
    height,
    theme,
  ]);

  const show = (range: readonly [number, number] | null) => {
    zoom.current = range;
    setIsZoomed(range !== null);
    if (range) plot.current?.setScale("x", { min: range[0], max: range[1] });
    else if (plot.current) plot.current.setData(plot.current.data);
    onZoom?.(range);
  };

  const readMarks = useEffectEvent(() => marks);
  const zoomTo = useEffectEvent(show);
  const draw = useEffectEvent((element: HTMLElement) => {
    const style = { xLabel, yLabel, log, height, marks: () => readMarks() };
    return new uPlot(
      optionsOf(series, style, element.clientWidth, (range) => zoomTo(range)),
      data,
      element,
    );
  });

  useEffect(() => {
    const element = frame.current!;
    const chart = draw(element);
    plot.current = chart;
    if (zoom.current) chart.setScale("x", { min: zoom.current[0], max: zoom.current[1] });
    const observer = new ResizeObserver(() => chart.setSize({ width: element.clientWidth, height }));
    observer.observe(element);
    return () => {
      observer.disconnect();
      chart.destroy();
      plot.current = null;
    };
  }, [shape, height]);

  useEffect(() => {
    const chart = plot.current;
    if (!chart || chart.data === data) return;
    chart.batch(() => {
      chart.setData(data, zoom.current === null);
      if (zoom.current) chart.setScale("x", { min: zoom.current[0], max: zoom.current[1] });
    });
  }, [data]);

  useEffect(() => plot.current?.redraw(false), [marks]);

  const move = (event: React.KeyboardEvent) => {
    const { min, max } = plot.current?.scales["x"] ?? {};
    if (min == null || max == null || event.ctrlKey || event.metaKey || event.altKey) return;
    const step = (max - min) * ZOOM_STEP;
    const ranges: Record<string, readonly [number, number] | null> = {
      ArrowLeft: [min - step, max - step],
      ArrowRight: [min + step, max + step],
      "+": [min + step, max - step],
      "-": [min - step, max + step],
      "0": null,
    };
    if (!(event.key in ranges)) return;
    event.preventDefault();
    show(ranges[event.key] ?? null);
  };

  const numPoints = series.reduce((most, curve) => Math.max(most, curve.x.length), 0);
  return (
    <figure className="curve" data-points={numPoints} aria-label={yLabel}>
      <figcaption>
        <span>
          <strong>{yLabel}</strong>{" "}
          {series.length === 1 && <span className="quiet">{formatNumber(lastOf(series[0]!).y)}</span>}{" "}
          {marks.map((mark) => (
            <span key={mark.label} className="quiet">
              {mark.label}
            </span>
          ))}
        </span>
        {isZoomed && (
          <button type="button" onClick={() => show(null)}>
            Whole curve
          </button>
        )}
      </figcaption>
      <div
        ref={frame}
        tabIndex={0}
        role="group"
        aria-label={`${yLabel} by ${xLabel}: + and - zoom, arrows move, 0 shows everything`}
        onKeyDown={move}
      />
      <LastValues series={series} xLabel={xLabel} yLabel={yLabel} />
    </figure>
  );
}

const NO_MARKS: readonly CurveMark[] = [];

/** Draw a line from the top to the bottom of a plot. */
function drawMark(plot: uPlot, x: number, colour: string): void {
  const { min, max } = plot.scales["x"] ?? {};
  if (min == null || max == null || x < min || x > max) return;
  const pixel = Math.round(plot.valToPos(x, "x", true));
  plot.ctx.save();
  plot.ctx.strokeStyle = colour;
  plot.ctx.setLineDash([4, 4]);
  plot.ctx.lineWidth = 1;
  plot.ctx.beginPath();
  plot.ctx.moveTo(pixel, plot.bbox.top);
  plot.ctx.lineTo(pixel, plot.bbox.top + plot.bbox.height);
  plot.ctx.stroke();
  plot.ctx.restore();
}

/** The last step that has a value, and that value. */
function lastOf({ x, y }: CurveSeries): { x?: number; y?: number | null } {
  const last = y.findLastIndex((value) => value != null);
  return { x: x[last], y: y[last] };
}

/** Text of the chart for screen readers. */
function LastValues({ series, xLabel, yLabel }: Pick<CurveProps, "series" | "xLabel" | "yLabel">) {
  return (
    // A table keeps its width when it is hidden, so that its frame is what is hidden.
    <div className="visually-hidden">
      <table>
        <caption>{yLabel}, last values</caption>
        <thead>
          <tr>
            <th scope="col">Curve</th>
            <th scope="col">{xLabel}</th>
            <th scope="col">{yLabel}</th>
            <th scope="col">Points</th>
          </tr>
        </thead>
        <tbody>
          {series.map((curve) => {
            const last = lastOf(curve);
            return (
              <tr key={curve.name}>
                <th scope="row">{curve.name}</th>
                <td>{last.x}</td>
                <td>{formatNumber(last.y)}</td>
                <td>{curve.x.length}</td>
              </tr>
            );
          })}
        </tbody>
      </table>
    </div>
  );
}

/** One axis for all series: x, then for each its line, and its band where it has one. */
function alignSeries(series: readonly CurveSeries[], log: boolean, smoothing: number): uPlot.AlignedData {
  const toValues = (values: readonly (number | null)[]) =>
    (log ? values.map((value) => (value != null && value > 0 ? value : null)) : values) as (number | null)[];
  const tables = series.map((curve) => {
    const line = toValues(smoothing > 0 ? smooth(curve.y, smoothing) : curve.y);
    const band = curve.low && curve.high ? [toValues(curve.low), toValues(curve.high)] : [];
    return [curve.x as number[], line, ...band] as uPlot.AlignedData;
  });
  if (tables.length === 0) return [[]];
  return tables.length === 1 ? tables[0]! : uPlot.join(tables);
}

const COMPACT = new Intl.NumberFormat("en-US", { notation: "compact", maximumSignificantDigits: 4 });

/** A number next to the axis, which has room for seven characters. */
function formatTick(tick: number, label: string): string {
  if (/bytes/i.test(label)) return formatBytes(tick);
  return Math.abs(tick) >= 1e6 ? COMPACT.format(tick) : formatNumber(tick);
}

function optionsOf(
  series: readonly CurveSeries[],
  frame: { xLabel: string; yLabel: string; log: boolean; height: number; marks: () => readonly CurveMark[] },
  width: number,
  show: (range: readonly [number, number] | null) => void,
): uPlot.Options {
  const { xLabel, yLabel, log, height, marks } = frame;
  const style = getComputedStyle(document.documentElement);
  const colour = (name: string) => resolveColour(style.getPropertyValue(name).trim());
  const lines: uPlot.Series[] = [{ label: xLabel, value: (_, value) => formatNumber(value) }];
  const bands: uPlot.Band[] = [];
  const number = (_: uPlot, value: number | null) => (value == null ? "" : formatNumber(value));
  series.forEach((curve, index) => {
    const stroke = colour(COLOURS[index % COLOURS.length]!);
    lines.push({
      label: curve.name,
      stroke,
      width: 1.5,
      dash: dashOf(index),
      spanGaps: true,
      points: { show: curve.x.length < 40 },
      value: number,
    });
    if (!curve.low || !curve.high) return;
    bands.push({ series: [lines.length + 1, lines.length], fill: fade(stroke) });
    lines.push({ label: `${curve.name}, lowest`, spanGaps: true, points: { show: false }, value: number });
    lines.push({ label: `${curve.name}, highest`, spanGaps: true, points: { show: false }, value: number });
  });
  const axis = {
    stroke: colour("--quiet"),
    grid: { stroke: colour("--line"), width: 1 },
    ticks: { stroke: colour("--line"), width: 1 },
  };
  return {
    width,
    height,
    series: lines,
    bands,
    scales: { x: { time: false }, y: { distr: log ? 3 : 1 } },
    axes: [
      { ...axis, label: xLabel, labelSize: 20, values: (_, ticks) => ticks.map((tick) => formatNumber(tick)) },
      { ...axis, size: 64, values: (_, ticks) => ticks.map((tick) => (tick == null ? "" : formatTick(tick, yLabel))) },
    ],
    cursor: {
      drag: { setScale: false, x: true, y: false },
      bind: {
        dblclick: () => () => {
          show(null);
          return null;
        },
      },
    },
    hooks: {
      draw: [(chart) => marks().forEach((mark) => drawMark(chart, mark.x, colour("--good")))],
      setSelect: [
        (chart) => {
          if (chart.select.width < 4) return;
          show([chart.posToVal(chart.select.left, "x"), chart.posToVal(chart.select.left + chart.select.width, "x")]);
          chart.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
        },
      ],
    },
    legend: { live: true, markers: { show: true } },
    title: undefined,
    id: undefined,
    class: yLabel ? undefined : "unnamed",
  };
}

/** A colour as the canvas takes it: `light-dark()` is for stylesheets only. */
function resolveColour(text: string): string {
  const probe = document.createElement("span");
  probe.style.color = text;
  document.body.append(probe);
  const color = getComputedStyle(probe).color;
  probe.remove();
  return color;
}

const fade = (colour: string) => colour.replace(/^rgb\((.*)\)$/, "rgba($1, 0.15)");

/** Changes when the theme does, so that plots take the new colours. */
function useTheme(): string {
  const read = () =>
    `${document.documentElement.dataset.theme ?? ""} ${window.matchMedia("(prefers-color-scheme: dark)").matches}`;
  const [theme, setTheme] = useState(read);
  useEffect(() => {
    const note = () => setTheme(read());
    const observer = new MutationObserver(note);
    observer.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
    const media = window.matchMedia("(prefers-color-scheme: dark)");
    media.addEventListener("change", note);
    return () => {
      observer.disconnect();
      media.removeEventListener("change", note);
    };
  }, []);
  return theme;
}
