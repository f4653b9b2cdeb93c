// The model's answers to held-out prompts during training, one step or two next to each other.

import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { client, dataOf } from "../../api/client";
import type { JobDetail, JobSamples } from "../../api/schema";
import { Queried, Section } from "../../components/page";
import { Table } from "../../components/table";
import { isOver, REFRESH_MS } from "./queries";

const NEWEST = "newest";

const useSamples = (job: JobDetail, step: string) =>
  useQuery({
    queryKey: ["samples", job.id, step],
    queryFn: () => {
      const query = step === NEWEST ? { limit: 1 } : { step: Number(step) };
      const params = { path: { job: job.id }, query };
      return dataOf(client.GET("/api/v1/jobs/{job}/samples", { params }));
    },
    refetchInterval: step !== NEWEST || isOver(job.state) ? false : 2 * REFRESH_MS,
    placeholderData: keepPreviousData,
  });

export function Samples({ job }: { job: JobDetail }) {
  const [step, setStep] = useState(NEWEST);
  const [otherJob, setOtherJob] = useState("");
  const samples = useSamples(job, step);
  const steps = samples.data?.steps ?? [];
  const first = String(steps[0] ?? "");
  const otherSamples = useSamples(job, otherJob || first || NEWEST);
  return (
    <Section
      title="Samples"
      actions={
        steps.length > 0 && (
          <>
            <StepPicker label="Step" steps={steps} value={step} onChange={setStep} newest />
            <StepPicker label="Next to step" steps={steps} value={otherJob || first} onChange={setOtherJob} />
          </>
        )
      }
    >
      <Queried query={samples}>
        {(data) =>
          data.rounds.length === 0 ? (
            <p className="quiet">
              None: <code>eval.samples</code> says how many held-out prompts are answered at each evaluation.
            </p>
          ) : (
            <Answers samples={data} earlierSamples={otherSamples.data} />
          )
        }
      </Queried>
    </Section>
  );
}

interface StepPickerProps {
  label: string;
  steps: readonly number[];
  value: string;
  onChange: (step: string) => void;
  newest?: boolean;
}

function StepPicker({ label, steps, value, onChange, newest }: StepPickerProps) {
  return (
    <label>
      {label}{" "}
      <select value={value} onChange={(event) => onChange(event.target.value)}>
        {newest && <option>{NEWEST}</option>}
        {steps.map((step) => (
          <option key={step}>{step}</option>
        ))}
      </select>
    </label>
  );
}

function Answers({ samples, earlierSamples }: { samples: JobSamples; earlierSamples?: JobSamples }) {
  return samples.rounds.map((round) => {
    const earlier = earlierSamples?.rounds.find((candidate) => candidate.node === round.node);
    return (
      <Table
        key={`${round.node}/${round.step}`}
        caption={`Answers of ${round.node} at step ${round.step}`}
        rows={round.samples}
        rowKey={(_, index) => index}
        columns={[
          { title: "Prompt", cell: (sample) => <div className="sample">{sample.prompt}</div> },
          {
            title: `Answer at step ${earlier?.step ?? ""}`,
            cell: (sample) => (
              <div className="sample">
                {earlier?.samples.find((candidate) => candidate.prompt === sample.prompt)?.answer ?? ""}
              </div>
            ),
          },
          { title: `Answer at step ${round.step} `, cell: (sample) => <div className="sample">{sample.answer}</div> },
        ]}
      />
    );
  });
}
