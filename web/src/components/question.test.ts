import { expect, it } from "vitest";
import { Problem, type ProblemReason } from "../api/client";
import { questionsOf } from "./question";

const reason = (code: string) =>
  ({ code, node: "trainer", field: "", because: "12 rows.", instead: "" }) as ProblemReason;
const refusal = (...codes: string[]) => new Problem(422, codes[0]!, "Refused.", "", "", codes.map(reason));

it("asks about a refusal that can be lifted, and about no other one", () => {
  expect(questionsOf(refusal("E-FEW-ROWS", "E-FEW-ROWS"))).toHaveLength(2);
  expect(questionsOf(refusal("E-FEW-ROWS", "R-METHOD-BACKEND"))).toEqual([]);
  expect(questionsOf(new Problem(503, "E-FEW-ROWS", "Away."))).toEqual([]);
  expect(questionsOf(new Error("E-FEW-ROWS"))).toEqual([]);
  expect(questionsOf(null)).toEqual([]);
});
