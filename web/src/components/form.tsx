// A form from a JSON Schema. It contains what was set and no default: a field that is left alone keeps what the server
// takes. Values are checked at the field while typing; what only the server knows comes as `problems`, at its field.

import { useId, useState, type ReactNode } from "react";
import type { ProblemReason } from "../api/client";
import { labelOf } from "./format";
import { defaultOf, NumberInput, shownDefault, TextInput, type Choices, type FieldProps } from "./inputs";
import { Prose } from "./prose";
import "./form.css";
import {
  describeInvalid,
  describeLimits,
  isWordAlone,
  resolveSchema,
  textOf,
  wordsOf,
  type JsonSchema,
} from "./schema";

type Values = Record<string, unknown>;

export interface SchemaFormProps {
  schema: JsonSchema;
  value: Values;
  onChange: (value: Values) => void;
  problems?: readonly ProblemReason[];
  /** What stands before the field's path in `problems`, such as `config`. */
  prefix?: string;
  /** Only these fields, in this order. */
  only?: readonly string[];
  /** Path of a field -> the value that a run takes for it while it is left out, as the service says. */
  defaults?: Values;
  /** Path of a field -> values to choose from; others may be written. */
  choices?: Choices;
  /** Path of a field -> a sentence after its description, about this machine. */
  hints?: Readonly<Record<string, string>>;
  /** Path of a field -> what stands below its control, such as an upload. */
  extras?: Readonly<Record<string, ReactNode>>;
  /** Path of a field -> what takes its place. */
  controls?: Readonly<Record<string, ReactNode>>;
}

export function SchemaForm(props: SchemaFormProps) {
  const { schema, value, onChange, problems = [], prefix = "", only, defaults = {}, choices = {}, hints = {} } = props;
  const { extras = {}, controls = {} } = props;
  const form = { root: schema, problems, defaults, choices, hints, extras, controls };
  return (
    <div className="schema-form">
      <Fields form={form} schema={schema} value={value} onChange={onChange} path={prefix} only={only} />
    </div>
  );
}

/** Settings that most people change: they are not folded away with the others of their group. */
const mainOf = (properties: JsonSchema["properties"] = {}, root: JsonSchema): readonly string[] =>
  Object.keys(properties).filter((name) => resolveSchema(properties[name]!, root).main);

const join = (path: string, name: string | number) => (path ? `${path}.${name}` : String(name));
const isObject = (value: unknown): value is Values =>
  typeof value === "object" && value !== null && !Array.isArray(value);

/** The fields of an object. One that is emptied is left out. */
function Fields(
  props: Omit<FieldProps, "name" | "onChange"> & { onChange: (value: Values) => void; only?: readonly string[] },
) {
  const { form, schema, path, only, onChange } = props;
  const value = isObject(props.value) ? props.value : {};
  const names = only?.filter((name) => schema.properties?.[name]) ?? Object.keys(schema.properties ?? {});
  const fields = names.map((name) => [name, resolveSchema(schema.properties![name]!, form.root)] as const);
  return fields.map(([name, field]) => (
    <Field
      key={name}
      form={form}
      schema={field}
      name={name}
      path={join(path, name)}
      required={schema.required?.includes(name)}
      value={value[name]}
      onChange={(next) => onChange(withValue(value, name, next))}
    />
  ));
}

function withValue(value: Values, name: string, next: unknown): Values {
  const { [name]: _, ...rest } = value;
  return next === undefined ? rest : { ...rest, [name]: next };
}

function Field(props: FieldProps) {
  const { schema, form, path } = props;
  if (schema.const !== undefined) return null;
  if (form.controls[path] !== undefined) return form.controls[path];
  if (wordsOf(schema, form.root)) return <WordField {...props} />;
  if (schema.anyOf) return <UnionField {...props} />;
  if (schema.type === "object" || schema.properties)
    return schema.properties ? <Group {...props} /> : <MapField {...props} />;
  if (schema.type === "array") return <ListField {...props} />;
  return <PlainField {...props} />;
}

/** Label, control, help and errors. */
function Labelled({
  field,
  invalid = "",
  wide,
  isGroup,
  children,
}: {
  field: FieldProps;
  invalid?: string;
  wide?: boolean;
  isGroup?: boolean;
  children: (ids: { id: string; "aria-describedby": string; "aria-invalid": boolean }) => ReactNode;
}) {
  const { schema, form, path, name, required, value } = field;
  const id = useId();
  const reasons = form.problems.filter((problem) => problem.field === path);
  const isMissing = required && value === undefined && schema.default === undefined;
  const label = (
    <>
      {labelOf(name)} {isMissing && <span className="badge">needed</span>}
    </>
  );
  return (
    <div
      className={`field ${wide ? "wide" : ""}`}
      role={isGroup ? "group" : undefined}
      aria-labelledby={isGroup ? `${id}-label` : undefined}
    >
      {isGroup ? <strong id={`${id}-label`}>{label}</strong> : <label htmlFor={id}>{label}</label>}
      {children({ id, "aria-describedby": `${id}-help`, "aria-invalid": Boolean(invalid) || reasons.length > 0 })}
      {form.extras[path]}
      <div id={`${id}-help`}>
        {invalid && <p className="invalid">{invalid}</p>}
        {reasons.map((reason, index) => (
          <p className="invalid" key={index}>
            <Prose text={reason.because} /> <Prose text={reason.instead} /> {reason.code && <code>{reason.code}</code>}
          </p>
        ))}
        <p className="help">
          <Prose
            text={[schema.description, form.hints[path], describeLimits(schema), describeDefault(field)]
              .filter(Boolean)
              .join(" ")}
          />
        </p>
      </div>
    </div>
  );
}

/** What a run takes for a field that is left out, where its schema does not say it. */
function describeDefault({ form, path, schema, value }: FieldProps): string {
  const fallback = form.defaults[path];
  return value === undefined && fallback != null && schema.default == null
    ? `Left out: ${shownDefault(fallback)}.`
    : "";
}

/** A text, a number, a word of several, yes or no. */
function PlainField(props: FieldProps) {
  const { schema, value } = props;
  if (schema.enum) return <ChoiceField {...props} />;
  if (schema.type === "boolean") return <YesNoField {...props} />;
  const isNumber = schema.type === "integer" || schema.type === "number";
  return (
    <Labelled field={props} invalid={describeInvalid(value, schema)}>
      {(ids) => (isNumber ? <NumberInput {...props} ids={ids} /> : <TextInput {...props} ids={ids} />)}
    </Labelled>
  );
}

function ChoiceField(props: FieldProps) {
  const { schema, value, onChange, required } = props;
  const fallback = defaultOf(props);
  const choices = schema.enum!.filter((choice) => choice === value || choice !== fallback);
  return (
    <Labelled
      field={props}
      invalid={value !== undefined && !schema.enum!.includes(value) ? "Choose one of the list." : ""}
    >
      {(ids) => (
        <select
          {...ids}
          value={value === undefined ? "" : textOf(value)}
          onChange={(event) => onChange(choices.find((choice) => textOf(choice) === event.target.value))}
        >
          <option value="">{fallback != null ? `${textOf(fallback)} (default)` : required ? "choose" : "none"}</option>
          {choices.map((choice) => (
            <option key={textOf(choice)} value={textOf(choice)}>
              {textOf(choice)}
            </option>
          ))}
        </select>
      )}
    </Labelled>
  );
}

function YesNoField(props: FieldProps) {
  const { schema, value, onChange } = props;
  const fallback = schema.default === true;
  return (
    <Labelled field={props}>
      {(ids) => (
        <input
          {...ids}
          type="checkbox"
          checked={typeof value === "boolean" ? value : fallback}
          onChange={(event) => onChange(event.target.checked === fallback ? undefined : event.target.checked)}
        />
      )}
    </Labelled>
  );
}

/** `lora`, or `{type: lora, rank: 8}`: the word alone while none of its settings is given. */
function WordField(props: FieldProps) {
  const { form, schema, value, onChange, path, required } = props;
  const variants = wordsOf(schema, form.root)!;
  const alone = isWordAlone(schema);
  const word = isObject(value) ? textOf(value.type) : textOf(value);
  const { type: _, ...settings } = isObject(value) ? value : {};
  const current = word || textOf(schema.default);
  const set = (next: string, current: Values) =>
    onChange(Object.keys(current).length > 0 || (next && !alone) ? { type: next, ...current } : next || undefined);
  const fields = variants[current]?.properties ?? {};
  const main = mainOf(fields, form.root);
  const rest = Object.keys(fields).filter((name) => !main.includes(name));
  const commonProps = {
    form,
    schema: variants[current]!,
    value: settings,
    path,
    onChange: (next: Values) => set(current, next),
  };
  return (
    <>
      <Labelled field={props} invalid={word && !variants[word] ? "Choose one of the list." : ""}>
        {(ids) => (
          <select {...ids} value={word} onChange={(event) => set(event.target.value, {})}>
            <option value="">
              {schema.default != null ? `${textOf(schema.default)} (default)` : required ? "choose" : "none"}
            </option>
            {Object.keys(variants)
              .filter((name) => name === word || name !== schema.default)
              .map((name) => (
                <option key={name}>{name}</option>
              ))}
          </select>
        )}
      </Labelled>
      {main.length > 0 && <Fields {...commonProps} only={main} />}
      {rest.length > 0 && (
        <Details
          title={`${main.length > 0 ? "More settings" : "Settings"} of ${current}`}
          current={withoutNames(settings, main)}
          problems={form.problems}
          path={path}
          names={rest}
        >
          <Fields {...commonProps} only={rest} />
        </Details>
      )}
    </>
  );
}

/** One of several kinds, such as a text or a list of texts. */
function UnionField(props: FieldProps) {
  const { form, schema, value, onChange, name } = props;
  const id = useId();
  const kinds = schema.anyOf!.map((option) => resolveSchema(option, form.root));
  const fitting = kinds.findIndex((option) => fits(value, option));
  const [selectedIndex, setSelectedIndex] = useState(Math.max(0, fitting));
  const index = value === undefined || fitting < 0 ? selectedIndex : fitting;
  const { anyOf: _, ...beside } = schema;
  const kind = { ...kinds[index]!, description: beside.description, default: beside.default };
  return (
    <div className="field">
      <label htmlFor={id} className="visually-hidden">
        Kind of {labelOf(name)}
      </label>
      <select
        id={id}
        value={index}
        onChange={(event) => {
          setSelectedIndex(Number(event.target.value));
          onChange(undefined);
        }}
      >
        {kinds.map((option, position) => (
          <option key={position} value={position}>
            {kindOf(option)}
          </option>
        ))}
      </select>
      <Field {...props} schema={kind} />
    </div>
  );
}

const kindOf = (schema: JsonSchema) =>
  schema.enum
    ? "one of a list"
    : ({ array: "list", object: schema.title ?? "object", string: "text", boolean: "yes or no" }[schema.type ?? ""] ??
      schema.type ??
      "value");

function fits(value: unknown, schema: JsonSchema): boolean {
  if (schema.enum) return schema.enum.includes(value);
  if (Array.isArray(value)) return schema.type === "array";
  if (isObject(value)) return schema.type === "object" || Boolean(schema.properties);
  if (typeof value === "number")
    return schema.type === "number" || (schema.type === "integer" && Number.isInteger(value));
  return typeof value === schema.type;
}

function Group(props: FieldProps) {
  const { form, schema, value, onChange, path, name, required } = props;
  const set = (next: Values) => onChange(Object.keys(next).length || required ? next : undefined);
  const commonProps = { form, schema, value, path, onChange: set };
  const main = mainOf(schema.properties, form.root);
  if (main.length > 0) {
    const rest = Object.keys(schema.properties!).filter((option) => !main.includes(option));
    return (
      <fieldset>
        <legend>{labelOf(name)}</legend>
        <Fields {...commonProps} only={main} />
        <Details
          title={`More ${labelOf(name).toLowerCase()}`}
          current={isObject(value) ? withoutNames(value, main) : value}
          problems={form.problems}
          path={path}
          names={rest}
        >
          <Fields {...commonProps} only={rest} />
        </Details>
      </fieldset>
    );
  }
  const fields = <Fields {...commonProps} />;
  if (!required)
    return (
      <Details title={labelOf(name)} current={value} problems={form.problems} path={path} help={schema.description}>
        {fields}
      </Details>
    );
  return (
    <fieldset>
      <legend>{labelOf(name)}</legend>
      {fields}
    </fieldset>
  );
}

const withoutNames = (value: Values, names: readonly string[]): Values =>
  Object.fromEntries(Object.entries(value).filter(([name]) => !names.includes(name)));

/** Settings that are folded away until one is given or wrong. */
function Details(props: {
  title: string;
  current: unknown;
  problems: readonly ProblemReason[];
  path: string;
  /** The fields inside, where these are not all of the path's. */
  names?: readonly string[];
  help?: string;
  children: ReactNode;
}) {
  const num = isObject(props.current) ? Object.keys(props.current).length : 0;
  const paths = props.names?.map((name) => join(props.path, name)) ?? [props.path];
  const isWrong = props.problems.some((problem) =>
    paths.some((fieldPath) => problem.field === fieldPath || problem.field.startsWith(`${fieldPath}.`)),
  );
  const [isOpen, setIsOpen] = useState(num > 0);
  return (
    <details open={isOpen || isWrong} onToggle={(event) => setIsOpen(event.currentTarget.open)}>
      <summary>
        {props.title} {num > 0 && <span className="quiet">({num} set)</span>}{" "}
        {isWrong && <span className="badge">not valid</span>}
      </summary>
      {(isOpen || isWrong) && (
        <div className="group">
          {props.help && (
            <p className="field wide help">
              <Prose text={props.help} />
            </p>
          )}
          {props.children}
        </div>
      )}
    </details>
  );
}

function ListField(props: FieldProps) {
  const { form, schema, value, onChange, path, name } = props;
  const items = Array.isArray(value) ? value : [];
  const schemaOf = (index: number) => resolveSchema(schema.prefixItems?.[index] ?? schema.items ?? {}, form.root);
  const choices = schemaOf(0).enum;
  const set = (next: unknown[]) => onChange(next.length ? next : undefined);
  if (choices && choices.length <= 12)
    return (
      <Labelled field={props} isGroup>
        {() =>
          choices.map((choice) => (
            <label key={textOf(choice)}>
              <input
                type="checkbox"
                checked={items.includes(choice)}
                onChange={(event) =>
                  set(event.target.checked ? [...items, choice] : items.filter((item) => item !== choice))
                }
              />{" "}
              {textOf(choice)}
            </label>
          ))
        }
      </Labelled>
    );
  return (
    <Labelled field={props} isGroup wide={items.some(isObject)}>
      {() => (
        <>
          {items.map((item, index) => (
            <div className="item" key={index}>
              <Field
                form={form}
                schema={schemaOf(index)}
                name={`${name} ${index + 1}`}
                path={join(path, index)}
                required
                value={item ?? undefined}
                onChange={(next) =>
                  set(items.map((option, position) => (position === index ? (next ?? null) : option)))
                }
              />
              <button
                type="button"
                aria-label={`Remove ${labelOf(name)} ${index + 1}`}
                onClick={() => set(items.filter((_, position) => position !== index))}
              >
                ✕
              </button>
            </div>
          ))}
          <button type="button" onClick={() => set([...items, emptyOf(schemaOf(items.length), form.root)])}>
            Add
          </button>
        </>
      )}
    </Labelled>
  );
}

/** A value to begin with, so that a new item of a list is one. */
function emptyOf(schema: JsonSchema, root: JsonSchema): unknown {
  const word = Object.keys(wordsOf(schema, root) ?? {})[0];
  if (word) return isWordAlone(schema) ? word : { type: word };
  if (schema.type === "object" || schema.properties) return {};
  return schema.enum?.[0] ?? (schema.type === "integer" || schema.type === "number" ? (schema.minimum ?? 0) : "");
}

/** Names of the user's own, each with a value. */
function MapField(props: FieldProps) {
  const { form, schema, value, onChange, path, name } = props;
  const [newKey, setNewKey] = useState("");
  const settings = isObject(value) ? value : {};
  const itemSchema = typeof schema.additionalProperties === "object" ? schema.additionalProperties : {};
  const item = resolveSchema(Object.values(schema.patternProperties ?? {})[0] ?? itemSchema, form.root);
  const set = (next: Values) => onChange(Object.keys(next).length ? next : undefined);
  const names = (schema.propertyNames as JsonSchema | undefined)?.enum?.map(textOf);
  const isFree = !item.type && !item.anyOf && !item.properties;
  return (
    <Labelled field={props} isGroup wide>
      {() => (
        <>
          {Object.entries(settings).map(([key, setting]) => (
            <div className="item" key={key}>
              {isFree ? (
                <JsonField name={key} value={setting} onChange={(next) => set(withValue(settings, key, next))} />
              ) : (
                <Field
                  form={form}
                  schema={item}
                  name={key}
                  path={join(path, key)}
                  value={setting ?? undefined}
                  onChange={(next) => set({ ...settings, [key]: next ?? null })}
                />
              )}
              <button
                type="button"
                aria-label={`Remove ${key}`}
                onClick={() => set(withValue(settings, key, undefined))}
              >
                ✕
              </button>
            </div>
          ))}
          <div className="item">
            {names ? (
              <select
                aria-label={`New name in ${labelOf(name)}`}
                value={newKey}
                onChange={(event) => setNewKey(event.target.value)}
              >
                <option value="">choose</option>
                {names
                  .filter((option) => !(option in settings))
                  .map((option) => (
                    <option key={option}>{option}</option>
                  ))}
              </select>
            ) : (
              <input
                type="text"
                aria-label={`New name in ${labelOf(name)}`}
                placeholder="name"
                value={newKey}
                onChange={(event) => setNewKey(event.target.value)}
              />
            )}
            <button
              type="button"
              disabled={!newKey || newKey in settings}
              onClick={() => {
                set({ ...settings, [newKey]: isFree ? "" : emptyOf(item, form.root) });
                setNewKey("");
              }}
            >
              Add
            </button>
          </div>
        </>
      )}
    </Labelled>
  );
}

/** Any JSON; other input is a text. */
function JsonField({ name, value, onChange }: { name: string; value: unknown; onChange: (value: unknown) => void }) {
  const id = useId();
  return (
    <div className="field">
      <label htmlFor={id}>{name}</label>
      <input
        id={id}
        type="text"
        value={textOf(value)}
        onChange={(event) => {
          try {
            onChange(JSON.parse(event.target.value));
          } catch {
            onChange(event.target.value);
          }
        }}
      />
    </div>
  );
}
