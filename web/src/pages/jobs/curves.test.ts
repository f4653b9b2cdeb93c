import { describe, expect, it } from "vitest";
import type { Point, TrainingCurve } from "../../api/schema";
import { curveOf, metricsOf, placesOn, seriesOf, titleOf } from "./curves";

const curve = (points: Partial<Point>[], fields: Partial<TrainingCurve> = {}) =>
  curveOf({ node: "trainer", points, ...fields } as TrainingCurve);

const TIMED = curve([
  { step: 1, loss: 3, time: 100, tokens_per_second: 10 },
  { step: 2, loss: 2, time: 160, tokens_per_second: 10, eval_loss: 2.5 },
  { step: 4, loss: 1, time: 220, tokens_per_second: 20 },
]);

describe("metrics", () => {
  it("are those that some step has, the usual ones first, axes left out", () => {
    expect(metricsOf([TIMED, curve([{ step: 1, kl: 0.1 } as Partial<Point>])])).toEqual([
      "loss",
      "eval_loss",
      "tokens_per_second",
      "kl",
    ]);
    expect([titleOf("eval_loss"), titleOf("clip_share")]).toEqual(["Evaluation loss", "Clip share"]);
  });
});

describe("axes", () => {
  it("count steps, minutes, epochs and tokens", () => {
    expect(placesOn("step", TIMED, null)).toEqual([1, 2, 4]);
    expect(placesOn("time", TIMED, null)).toEqual([0, 1, 2]);
    expect(placesOn("epoch", TIMED, 0.5)).toEqual([0.5, 1, 2]);
    expect(placesOn("tokens", TIMED, null)).toEqual([0, 600, 1800]);
  });

  it("are none where nothing is known of them", () => {
    expect(placesOn("epoch", TIMED, null)).toBeNull();
    expect(placesOn("tokens", curve([{ step: 1, loss: 1, time: 1 }]), null)).toBeNull();
  });

  it("take what the steps say themselves", () => {
    expect(placesOn("epoch", curve([{ step: 1, epoch: 0.1 } as Partial<Point>]), 0.5)).toEqual([0.1]);
  });
});

describe("series", () => {
  it("have the steps that have the metric", () => {
    expect(seriesOf(TIMED, "eval_loss")).toEqual({ name: "trainer", x: [2], y: [2.5] });
    expect(seriesOf(TIMED, "reward")).toBeNull();
  });

  it("have the band of points that stand for several steps", () => {
    const coarse = curve([{ step: 1, loss: 2 }], { low: { loss: [1] }, high: { loss: [3] } } as Partial<TrainingCurve>);
    expect(seriesOf(coarse, "loss", "both", [7])).toEqual({ name: "both", x: [7], y: [2], low: [1], high: [3] });
  });
});
