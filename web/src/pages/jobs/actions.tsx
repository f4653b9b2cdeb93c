// What can be done with a job in its state: pause, resume, cancel.

import type { JobState } from "../../api/schema";
import { ActionButton } from "../../components/action";
import { useJobAction, verbsOf, type JobVerb } from "./queries";

const QUESTIONS: Record<JobVerb, string> = {
  pause: "",
  resume: "",
  cancel: "Cancel this job? Its training saves first, so that it can be resumed.",
};

export function JobActions({ job, state }: { job: string; state: JobState }) {
  return verbsOf(state).map((verb) => <Action key={verb} job={job} verb={verb} />);
}

function Action({ job, verb }: { job: string; verb: JobVerb }) {
  const mutation = useJobAction(job, verb);
  return (
    <ActionButton
      mutation={mutation}
      variables={undefined}
      confirm={QUESTIONS[verb] || undefined}
      danger={verb === "cancel"}
    >
      {verb.charAt(0).toUpperCase() + verb.slice(1)}
    </ActionButton>
  );
}
