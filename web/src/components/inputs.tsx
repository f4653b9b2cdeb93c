// The values of a form's fields: what a field is, what it takes while it is left out, and the inputs of texts and numbers.

import { useId, useState, type ReactNode } from "react";
import type { ProblemReason } from "../api/client";
import { textOf, type JsonSchema } from "./schema";

type Values = Record<string, unknown>;

/** A suggestion of a text field, with its note. */
export interface Choice {
  value: string;
  label?: string;
}
export type Choices = Readonly<Record<string, readonly Choice[] | undefined>>;

export interface Form {
  root: JsonSchema;
  problems: readonly ProblemReason[];
  defaults: Values;
  choices: Choices;
  /** Path of a field -> a sentence after its description, about this machine. */
  hints: Readonly<Record<string, string>>;
  /** Path of a field -> what stands below its control, such as an upload. */
  extras: Readonly<Record<string, ReactNode>>;
  /** Path of a field -> what takes its place; null: the field of its schema. */
  controls: Readonly<Record<string, ReactNode>>;
}

export interface FieldProps {
  form: Form;
  /** Resolved. */
  schema: JsonSchema;
  value: unknown;
  onChange: (value: unknown) => void;
  /** As the server names it: `hyperparameters.learning_rate`. */
  path: string;
  name: string;
  required?: boolean;
}

/** The value of a field that is left out. */
export const defaultOf = ({ form, path, schema }: Pick<FieldProps, "form" | "path" | "schema">): unknown =>
  form.defaults[path] ?? schema.default;

/** A small number as people write it: `0.0002` is `2e-4`. */
export const shownDefault = (value: unknown): string =>
  typeof value === "number" && value !== 0 && Math.abs(value) < 1e-3 ? value.toExponential() : textOf(value);

type WithIds = FieldProps & { ids: object };

/** A number may be written as `1e-4`, so that the text is kept until it is one. */
export function NumberInput({ schema, form, path, value, onChange, ids }: WithIds) {
  const [text, setText] = useState<string | null>(null);
  return (
    <input
      {...ids}
      type="text"
      inputMode="decimal"
      autoComplete="off"
      value={text ?? textOf(value)}
      placeholder={shownDefault(defaultOf({ form, path, schema }))}
      onChange={(event) => {
        const input = event.target.value;
        setText(input);
        onChange(input.trim() === "" ? undefined : Number.isFinite(Number(input)) ? Number(input) : input);
      }}
      onBlur={() => setText(null)}
    />
  );
}

export function TextInput({ schema, form, path, value, onChange, ids }: WithIds) {
  const list = useId();
  const choices = form.choices[path];
  const commonProps = {
    ...ids,
    value: textOf(value),
    placeholder: textOf(defaultOf({ form, path, schema })),
    onChange: (event: { target: { value: string } }) =>
      onChange(event.target.value === "" ? undefined : event.target.value),
  };
  const isLong = schema.widget === "textarea" || textOf(value).includes("\n");
  return isLong ? (
    <textarea {...commonProps} rows={4} />
  ) : (
    <>
      <input {...commonProps} type="text" autoComplete="off" spellCheck={false} list={choices && list} />
      {choices && (
        <datalist id={list}>
          {choices.map((choice) => (
            <option key={choice.value} value={choice.value} label={choice.label} />
          ))}
        </datalist>
      )}
    </>
  );
}
