import { describe, expect, it } from "vitest";
import {
  describeInvalid,
  describeLimits,
  hasField,
  isWordAlone,
  listFields,
  pathWith,
  resolveSchema,
  textOf,
  wordsOf,
  type JsonSchema,
} from "./schema";

const ROOT: JsonSchema = {
  $defs: {
    Path: { type: "string", widget: "rows" },
    Data: {
      type: "object",
      properties: {
        path: { $ref: "#/$defs/Path", description: "A file." },
        columns: { type: "object", widget: "columns", properties: { sft: { type: "object" } } },
      },
      required: ["path"],
    },
    Lora: { type: "object", properties: { type: { const: "lora" }, rank: { type: "integer" } }, required: ["type"] },
    Full: { type: "object", properties: { type: { const: "full" } }, required: ["type"] },
  },
  properties: {
    data: { $ref: "#/$defs/Data" },
    model: { anyOf: [{ type: "string", widget: "model" }, { type: "null" }], default: null },
    method: {
      anyOf: [
        { type: "string" },
        {
          oneOf: [{ $ref: "#/$defs/Lora" }, { $ref: "#/$defs/Full" }],
          discriminator: { propertyName: "type", mapping: { lora: "#/$defs/Lora", full: "#/$defs/Full" } },
        },
      ],
    },
    rows: { type: "array", items: { $ref: "#/$defs/Data" } },
  },
};
const property = (name: string) => ROOT.properties![name]!;

describe("resolveSchema", () => {
  it("takes what is said next to a reference", () => {
    const path = resolveSchema(resolveSchema(property("data"), ROOT).properties!.path!, ROOT);
    expect(path).toMatchObject({ type: "string", widget: "rows", description: "A file." });
  });

  it("keeps the widget of an optional value", () => {
    expect(resolveSchema(property("model"), ROOT)).toMatchObject({ type: "string", widget: "model" });
    expect(resolveSchema(property("model"), ROOT).default).toBeUndefined();
  });
});

describe("fields", () => {
  it("are listed with those of groups, a widget as a whole", () => {
    expect(listFields(ROOT, ROOT, "config").map(([path]) => path)).toEqual([
      "config.data.path",
      "config.data.columns",
      "config.model",
      "config.method",
      "config.rows",
    ]);
  });

  it("are found by their widget", () => {
    expect(pathWith("columns", ROOT)).toBe("data.columns");
    expect(pathWith("repository", ROOT)).toBe("");
  });

  it("are there for the paths of reasons", () => {
    const has = (path: string) => hasField(ROOT, ROOT, path.split("."));
    expect(["data.path", "method", "method.rank", "rows.0.path"].map(has)).toEqual([true, true, true, true]);
    expect(["data", "data.none", "none"].map(has)).toEqual([false, false, false]);
  });
});

describe("words with settings", () => {
  it("have the settings without the word itself", () => {
    expect(wordsOf(property("method"), ROOT)).toMatchObject({
      lora: { properties: { rank: { type: "integer" } }, required: [] },
      full: { properties: {} },
    });
    expect(wordsOf(property("model"), ROOT)).toBeNull();
    expect(isWordAlone(property("method"))).toBe(true);
  });
});

describe("values", () => {
  it("are described with their limits", () => {
    expect(describeLimits({ minimum: 1, maximum: 4096 })).toBe("1 to 4,096.");
    expect(describeLimits({ exclusiveMinimum: 0 })).toBe("Above 0.");
    expect(describeLimits({ maximum: 2 })).toBe("At most 2.");
    expect(describeLimits({})).toBe("");
  });

  it("are wrong only where they are given", () => {
    expect(describeInvalid(undefined, { type: "integer" })).toBe("");
    expect(describeInvalid(3, { type: "integer", maximum: 4 })).toBe("");
    expect(describeInvalid(5, { type: "integer", maximum: 4 })).not.toBe("");
    expect(describeInvalid("x", { type: "number" })).not.toBe("");
  });

  it("are texts in a placeholder", () => {
    expect([null, 3, "x", { a: 1 }].map(textOf)).toEqual(["", "3", "x", '{"a":1}']);
  });
});
