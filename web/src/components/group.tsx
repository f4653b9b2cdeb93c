// The group of runs that a new one belongs to, with the groups of the newest jobs to choose from.

import { useId } from "react";
import { useJobs } from "../pages/jobs/queries";

export const GROUP_NAME = /^([a-z0-9][a-z0-9._-]{0,62})?$/;

export function GroupField({ value, onChange }: { value: string; onChange: (value: string) => void }) {
  const id = useId();
  const { data } = useJobs({});
  const groups = [...new Set((data?.jobs ?? []).flatMap((job) => (job.group ? [job.group] : [])))];
  const isWrong = !GROUP_NAME.test(value);
  return (
    <div className="group-field">
      <label htmlFor={id}>Group</label>
      <input
        id={id}
        type="text"
        list={`${id}-list`}
        autoComplete="off"
        maxLength={63}
        placeholder="none"
        value={value}
        aria-invalid={isWrong || undefined}
        aria-describedby={`${id}-help`}
        onChange={(event) => onChange(event.target.value)}
      />
      <datalist id={`${id}-list`}>
        {groups.map((name) => (
          <option key={name}>{name}</option>
        ))}
      </datalist>
      <p id={`${id}-help`} className={isWrong ? "invalid" : "help"}>
        {isWrong
          ? "Small letters, digits, dots, dashes and underscores; the first is a letter or a digit."
          : "Runs of one group are listed and compared together."}
      </p>
    </div>
  );
}
