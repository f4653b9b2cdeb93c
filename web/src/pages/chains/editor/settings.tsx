// The settings of a node from the JSON Schema of its config: what is left empty takes its default. The service checks.

import { useId, useState } from "react";

export interface Schema {
  type?: string;
  title?: string;
  description?: string;
  default?: unknown;
  enum?: unknown[];
  const?: unknown;
  anyOf?: Schema[];
  oneOf?: Schema[];
  allOf?: Schema[];
  $ref?: string;
  $defs?: Record<string, Schema>;
  properties?: Record<string, Schema>;
  required?: string[];
  items?: Schema;
  additionalProperties?: Schema | boolean;
  discriminator?: { propertyName: string; mapping?: Record<string, string> };
}

export interface FieldProblem {
  /** Dotted path below the config. */
  field: string;
  because: string;
  instead: string;
  code: string;
}

type Values = Record<string, unknown>;

interface SettingsProps {
  root: Schema;
  schema: Schema;
  value: Values;
  onChange: (value: Values) => void;
  problems: readonly FieldProblem[];
  path?: string;
  disabled?: boolean;
}

const isMapping = (value: unknown): value is Values =>
  typeof value === "object" && value !== null && !Array.isArray(value);

function resolved(root: Schema, schema: Schema): Schema {
  if (schema.$ref) {
    const found = root.$defs?.[schema.$ref.split("/").at(-1)!] ?? {};
    return { ...resolved(root, found), ...withoutRef(schema) };
  }
  const choices = schema.anyOf?.filter((one) => one.type !== "null");
  if (choices?.length === 1) return { ...resolved(root, choices[0]!), ...withoutChoices(schema) };
  const tagged = choices?.find((one) => one.discriminator);
  if (tagged) return { ...tagged, ...withoutChoices(schema) };
  return schema;
}

const withoutRef = ({ $ref: _, ...rest }: Schema): Schema => rest;
const withoutChoices = ({ anyOf: _, ...rest }: Schema): Schema => rest;

/** Every setting of a model; groups and variants are closed until somebody sets something in them. */
export function Settings({ root, schema, value, onChange, problems, path = "", disabled }: SettingsProps) {
  const set = (name: string, given: unknown) => {
    const { [name]: _, ...rest } = value;
    onChange(given === undefined ? rest : { ...rest, [name]: given });
  };
  return (
    <div className="settings">
      {Object.entries(schema.properties ?? {})
        .filter(([name]) => name !== "type" || path === "")
        .map(([name, field]) => (
          <Setting
            key={name}
            name={name}
            root={root}
            schema={resolved(root, field)}
            value={value[name]}
            isRequired={schema.required?.includes(name) ?? false}
            onChange={(given) => set(name, given)}
            problems={problems}
            path={path ? `${path}.${name}` : name}
            disabled={disabled}
          />
        ))}
    </div>
  );
}

interface SettingProps {
  name: string;
  root: Schema;
  schema: Schema;
  value: unknown;
  isRequired: boolean;
  onChange: (value: unknown) => void;
  problems: readonly FieldProblem[];
  path: string;
  disabled?: boolean;
}

function Setting(props: SettingProps) {
  const { schema, path, problems } = props;
  if (schema.oneOf && schema.discriminator) return <VariantSetting {...props} />;
  if (schema.properties) return <GroupSetting {...props} />;
  const own = problems.filter((one) => one.field === path || one.field.startsWith(`${path}.`));
  return <PlainSetting {...props} own={own} />;
}

function GroupSetting({ name, root, schema, value, onChange, problems, path, disabled }: SettingProps) {
  const given = isMapping(value) ? value : {};
  const wrong = problems.some((one) => one.field === path || one.field.startsWith(`${path}.`));
  return (
    <details className="setting-group" open={wrong || undefined}>
      <summary>
        {name} {Object.keys(given).length > 0 && <span className="quiet">({Object.keys(given).length} set)</span>}
      </summary>
      {schema.description && <p className="hint quiet">{schema.description.split("\n")[0]}</p>}
      <OwnProblems problems={problems} path={path} />
      <Settings
        root={root}
        schema={schema}
        value={given}
        onChange={(next) => onChange(Object.keys(next).length ? next : undefined)}
        problems={problems}
        path={path}
        disabled={disabled}
      />
    </details>
  );
}

/** One of several models that `type` names, such as a stage or a method. */
function VariantSetting({ name, root, schema, value, onChange, problems, path, disabled }: SettingProps) {
  const id = useId();
  const mapping = schema.discriminator?.mapping ?? {};
  const usual = isMapping(schema.default) ? String(schema.default.type) : String(schema.default ?? "");
  const given: Values = isMapping(value) ? value : typeof value === "string" ? { type: value } : {};
  const type = String(given.type ?? usual);
  const model = mapping[type] ? resolved(root, { $ref: mapping[type] }) : {};
  const inner = Object.fromEntries(Object.entries(model.properties ?? {}).filter(([key]) => key !== "type"));
  return (
    <div className="setting">
      <label htmlFor={id}>{name}</label>
      <select
        id={id}
        value={type}
        disabled={disabled}
        onChange={(event) => onChange(event.target.value === usual ? undefined : { type: event.target.value })}
      >
        {Object.keys(mapping).map((word) => (
          <option key={word}>{word}</option>
        ))}
      </select>
      {schema.description && <p className="hint">{schema.description}</p>}
      <OwnProblems problems={problems} path={path} />
      {Object.keys(inner).length > 0 && (
        <details className="setting-group">
          <summary>settings of {type}</summary>
          <Settings
            root={root}
            schema={{ ...model, properties: inner }}
            value={given}
            onChange={(next) => onChange({ type, ...next })}
            problems={problems}
            path={path}
            disabled={disabled}
          />
        </details>
      )}
    </div>
  );
}

function OwnProblems({ problems, path }: { problems: readonly FieldProblem[]; path: string }) {
  const own = problems.filter((one) => one.field === path);
  return own.map((one, index) => (
    <p key={index} className="wrong">
      {one.because} {one.instead} <code>{one.code}</code>
    </p>
  ));
}

function PlainSetting({
  name,
  schema,
  value,
  isRequired,
  onChange,
  own,
  disabled,
}: SettingProps & { own: readonly FieldProblem[] }) {
  const id = useId();
  const hint = `${id}-hint`;
  const isWrong = own.length > 0;
  return (
    <div className={`setting${isWrong ? " is-wrong" : ""}`}>
      <label htmlFor={id}>
        {name} {isRequired && value === undefined && <span className="required-badge">required</span>}
      </label>
      <Widget
        id={id}
        hint={hint}
        schema={schema}
        value={value}
        onChange={onChange}
        isWrong={isWrong}
        disabled={disabled}
      />
      <div id={hint}>
        {schema.description && <p className="hint">{schema.description}</p>}
        {own.map((one, index) => (
          <p key={index} className="wrong">
            {one.because} {one.instead} <code>{one.code}</code>
          </p>
        ))}
      </div>
    </div>
  );
}

interface WidgetProps {
  id: string;
  hint: string;
  schema: Schema;
  value: unknown;
  onChange: (value: unknown) => void;
  isWrong: boolean;
  disabled?: boolean;
}

function Widget({ id, hint, schema, value, onChange, isWrong, disabled }: WidgetProps) {
  const common = { id, disabled, "aria-describedby": hint, "aria-invalid": isWrong || undefined };
  const usual = schema.default == null ? "" : typeof schema.default === "object" ? "" : String(schema.default);
  if (schema.enum) {
    return (
      <select
        {...common}
        value={value === undefined ? "" : String(value)}
        onChange={(event) => onChange(event.target.value === "" ? undefined : event.target.value)}
      >
        <option value="">{usual ? `default: ${usual}` : "default"}</option>
        {schema.enum.map((word) => (
          <option key={String(word)}>{String(word)}</option>
        ))}
      </select>
    );
  }
  if (schema.type === "boolean") {
    return (
      <select
        {...common}
        value={value === undefined ? "" : String(value)}
        onChange={(event) => onChange(event.target.value === "" ? undefined : event.target.value === "true")}
      >
        <option value="">default: {usual}</option>
        <option>true</option>
        <option>false</option>
      </select>
    );
  }
  if (schema.type === "string" && (value === undefined || typeof value === "string")) {
    return (
      <input
        {...common}
        value={(value as string) ?? ""}
        placeholder={usual}
        onChange={(event) => onChange(event.target.value === "" ? undefined : event.target.value)}
      />
    );
  }
  return <JsonInput common={common} value={value} usual={usual} onChange={onChange} isScalar={isNumeric(schema)} />;
}

const isNumeric = (schema: Schema) => schema.type === "number" || schema.type === "integer";

/** Numbers, lists and mappings as JSON. What is not JSON yet goes to the service as text, which says what is wrong. */
function JsonInput({
  common,
  value,
  usual,
  onChange,
  isScalar,
}: {
  common: object;
  value: unknown;
  usual: string;
  onChange: (value: unknown) => void;
  isScalar: boolean;
}) {
  const [text, setText] = useState<string | null>(null);
  const shown =
    text ??
    (value === undefined
      ? ""
      : typeof value === "string"
        ? value
        : JSON.stringify(value, null, isScalar ? undefined : 1));
  const change = (next: string) => {
    setText(next);
    onChange(next.trim() === "" ? undefined : parsed(next));
  };
  const properties = {
    ...common,
    value: shown,
    placeholder: usual,
    onChange: (event: { target: { value: string } }) => change(event.target.value),
    onBlur: () => setText(null),
  };
  return isScalar ? (
    <input inputMode="decimal" {...properties} />
  ) : (
    <textarea className="code" rows={Math.min(8, shown.split("\n").length + 1)} {...properties} />
  );
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
