import { describe, expect, it } from "vitest";
import {
  formatBytes,
  formatDuration,
  formatNumber,
  formatPercent,
  formatShortTime,
  formatTime,
  labelOf,
  titleOfResult,
} from "./format";

describe("formatDuration", () => {
  it.each([
    [null, ""],
    [0, "0 s"],
    [0.04, "< 0.1 s"],
    [0.4, "0.4 s"],
    [9.94, "9.9 s"],
    [9.96, "10 s"],
    [59.4, "59 s"],
    [59.6, "1 min"],
    [60, "1 min"],
    [73, "1 min 13 s"],
    [119.7, "2 min"],
    [3599.6, "1 h"],
    [3600, "1 h"],
    [90_061, "25 h 1 min"],
  ])("writes %s s as %s", (seconds, text) => expect(formatDuration(seconds)).toBe(text));
});

describe("times", () => {
  const time = new Date(2026, 10, 28, 4, 5, 6).getTime() / 1000;

  it("are empty where nothing has happened", () => {
    expect(formatTime(null)).toBe("");
    expect(formatShortTime(undefined)).toBe("");
  });

  it("have seconds in full and none in short", () => {
    expect(formatTime(time)).toMatch(/2026.*:05:06/);
    expect(formatShortTime(time)).toMatch(/28.*04:05/);
    expect(formatShortTime(time)).not.toMatch(/2026|:06/);
  });

  it("tell the runs of one template apart in the title of a result", () => {
    const title = (hours: number, node?: string) =>
      titleOfResult({ run_name: "qa-pipeline", ended: time + hours * 3600, ...(node && { node }) });
    expect(title(0, "evaluator")).toMatch(/^qa-pipeline, .*04:05.*, evaluator$/);
    expect(title(0)).not.toBe(title(1));
    expect(titleOfResult({ run_name: "", ended: time })).toMatch(/^run, /);
  });
});

describe("numbers", () => {
  it.each([
    [null, ""],
    [0, "0"],
    [1234567, "1,234,567"],
    [0.00012, "0.00012"],
    [2.30449, "2.304"],
    [0.00001, "0.00001"],
    [Infinity, "Infinity"],
  ])("writes %s as %s", (value, text) => expect(formatNumber(value)).toBe(text));

  it("writes bytes with a binary unit", () => {
    expect([0, 1023, 1024, 1536, 150 * 1024, 3 * 1024 ** 3].map(formatBytes)).toEqual([
      "0 B",
      "1023 B",
      "1.0 KiB",
      "1.5 KiB",
      "150 KiB",
      "3.0 GiB",
    ]);
  });

  it("writes shares and names", () => {
    expect(formatPercent(0.125)).toBe("12.5 %");
    expect(labelOf("learning_rate")).toBe("Learning rate");
  });
});
