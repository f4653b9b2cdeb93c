import { expect, it } from "vitest";
import { intervalText } from "./interval";

it("writes a mean with its interval, and says where one case gives none", () => {
  expect(intervalText({ mean: 5.318, low: 5.163, high: 5.469 })).toBe("+5.318 [+5.163, +5.469]");
  expect(intervalText({ mean: -1, low: -2, high: 0 })).toBe("-1 [-2, 0]");
  expect(intervalText({ mean: 0.5, low: null, high: null })).toBe("+0.5 (one case: no interval)");
  expect(intervalText({ mean: null })).toBe("");
});
