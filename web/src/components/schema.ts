// What a form needs to know of a JSON Schema as pydantic writes it: references, optional values, words with settings.

import { Validator } from "@cfworker/json-schema";
import { formatNumber } from "./format";

/** Values of `widget` that the service gives: how a form shows a field. */
export const WIDGETS = ["textarea", "model", "columns", "documents", "rows", "repository"] as const;
export type Widget = (typeof WIDGETS)[number];

export interface JsonSchema {
  $ref?: string;
  $defs?: Record<string, JsonSchema>;
  type?: string;
  title?: string;
  description?: string;
  default?: unknown;
  const?: unknown;
  enum?: unknown[];
  anyOf?: JsonSchema[];
  oneOf?: JsonSchema[];
  discriminator?: { propertyName: string; mapping: Record<string, string> };
  properties?: Record<string, JsonSchema>;
  required?: string[];
  additionalProperties?: boolean | JsonSchema;
  patternProperties?: Record<string, JsonSchema>;
  items?: JsonSchema;
  prefixItems?: JsonSchema[];
  minimum?: number;
  maximum?: number;
  exclusiveMinimum?: number;
  exclusiveMaximum?: number;
  minLength?: number;
  maxLength?: number;
  pattern?: string;
  /** How a form shows the field (`WIDGETS`), as the service says it; without one by its type. */
  widget?: Widget;
  /** Whether the field is not folded away with the others of its group. */
  main?: boolean;
  [key: string]: unknown;
}

/** The schema that a reference names, merged with the keys next to the reference; without `null` among its kinds. */
export function resolveSchema(schema: JsonSchema, root: JsonSchema): JsonSchema {
  if (schema.$ref) {
    const { $ref, ...beside } = schema;
    const target = root.$defs?.[$ref.split("/").at(-1)!] ?? {};
    return resolveSchema({ ...target, ...beside, title: beside.title ?? target.title }, root);
  }
  if (schema.anyOf?.some((kind) => kind.type === "null")) {
    const { anyOf, ...beside } = schema;
    const kinds = anyOf.filter((kind) => kind.type !== "null");
    const rest = { ...beside, default: beside.default ?? undefined };
    return kinds.length === 1
      ? resolveSchema({ ...kinds[0], ...rest, description: rest.description ?? kinds[0]!.description }, root)
      : { ...rest, anyOf: kinds };
  }
  return schema;
}

/** Path and schema of every field, those of groups too. */
export function listFields(schema: JsonSchema, root: JsonSchema, prefix: string): [path: string, schema: JsonSchema][] {
  return Object.entries(schema.properties ?? {}).flatMap(([name, property]) => {
    const field = resolveSchema(property, root);
    const path = prefix ? `${prefix}.${name}` : name;
    // A widget shows its group as a whole.
    return field.properties && !field.widget ? listFields(field, root, path) : [[path, field] as [string, JsonSchema]];
  });
}

/** The path of the first field with this widget; empty for none. */
export const pathWith = (widget: Widget, schema: JsonSchema, prefix = ""): string =>
  listFields(schema, schema, prefix).find(([, field]) => field.widget === widget)?.[0] ?? "";

/** The schema of a word that may have settings (`lora`, or `{type: lora, rank: 8}`): word -> the schema of its settings. */
export function wordsOf(schema: JsonSchema, root: JsonSchema): Record<string, JsonSchema> | null {
  const union = schema.oneOf ? schema : schema.anyOf?.find((kind) => kind.oneOf);
  const { propertyName, mapping } = union?.discriminator ?? {};
  if (!propertyName || !mapping) return null;
  return Object.fromEntries(
    Object.entries(mapping).map(([word, reference]) => {
      const { [propertyName]: _, ...properties } = resolveSchema({ $ref: reference }, root).properties ?? {};
      const target = resolveSchema({ $ref: reference }, root);
      return [word, { ...target, properties, required: target.required?.filter((name) => name !== propertyName) }];
    }),
  );
}

/** Whether a form of this schema has a field with this path, which shows its problem. */
export function hasField(schema: JsonSchema, root: JsonSchema, path: readonly string[]): boolean {
  const target = resolveSchema(schema, root);
  const variants = wordsOf(target, root);
  const [name, ...rest] = path;
  if (name === undefined) return variants !== null || target.properties === undefined;
  const kinds = [...Object.values(variants ?? {}), ...(variants ? [] : (target.anyOf ?? []))];
  if (kinds.some((kind) => hasField(kind, root, path))) return true;
  const inner = target.properties?.[name] ?? target.prefixItems?.[Number(name)] ?? target.items;
  return inner !== undefined && hasField(inner, root, rest);
}

/** Whether the word alone is a value, too. */
export const isWordAlone = (schema: JsonSchema): boolean => !schema.oneOf;

/** The problem of a text, a number or a list of them; empty for a valid or missing value. */
export function describeInvalid(value: unknown, schema: JsonSchema): string {
  if (value === undefined) return "";
  const { errors, valid } = new Validator(schema as never, "2020-12").validate(value);
  return valid ? "" : (errors.at(-1)?.error ?? "This value is not valid.");
}

/** The range of a number or the length of a text, in words. */
export function describeLimits(schema: JsonSchema): string {
  const [least, most] = [schema.minimum ?? schema.exclusiveMinimum, schema.maximum ?? schema.exclusiveMaximum];
  const low = least == null ? null : formatNumber(least);
  const high = most == null ? null : formatNumber(most);
  const above = schema.exclusiveMinimum != null ? "Above " : "";
  if (low != null && high != null) return `${above}${low} to ${high}.`;
  if (low != null) return `${above || "At least "}${low}.`;
  if (high != null) return `At most ${high}.`;
  return "";
}

/** A value as a placeholder shows it. */
export const textOf = (value: unknown): string =>
  value == null ? "" : typeof value === "object" ? JSON.stringify(value) : String(value);
