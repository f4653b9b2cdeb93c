// What people want to remember about a job: read by who may look, written by who may run.

import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useId, useState } from "react";
import { client, dataOf } from "../../api/client";
import { useLogin } from "../../api/login";
import type { Job } from "../../api/schema";
import { ProblemNote } from "../../components/notes";
import { Section } from "../../components/page";

const MOST_CHARS = 4000;

export function Note({ job }: { job: Pick<Job, "id" | "note"> }) {
  const { allows } = useLogin();
  const queries = useQueryClient();
  const id = useId();
  const [text, setText] = useState<string | null>(null);
  const save = useMutation({
    mutationFn: (note: string) =>
      dataOf(
        client.PUT("/api/v1/jobs/{job}/note", { params: { path: { job: job.id } }, body: { text: note } as never }),
      ),
    onSuccess: async () => {
      await queries.invalidateQueries({ queryKey: ["job", job.id] });
      await queries.invalidateQueries({ queryKey: ["jobs"] });
      setText(null);
    },
  });
  const savedNote = job.note ?? "";
  if (!allows("run"))
    return savedNote ? (
      <Section title="Note">
        <p className="note">{savedNote}</p>
      </Section>
    ) : null;
  const isChanged = text !== null && text !== savedNote;
  return (
    <Section title="Note">
      <label htmlFor={id} className="visually-hidden">
        Note about this job
      </label>
      <textarea
        id={id}
        className="note"
        rows={2}
        maxLength={MOST_CHARS}
        placeholder="What was tried, what to remember"
        value={text ?? savedNote}
        onChange={(event) => setText(event.target.value)}
      />
      {isChanged && (
        <div className="actions">
          <button type="button" disabled={save.isPending} aria-busy={save.isPending} onClick={() => save.mutate(text)}>
            Save the note
          </button>
          <button type="button" onClick={() => setText(null)}>
            Discard
          </button>
        </div>
      )}
      {save.error && <ProblemNote error={save.error} />}
    </Section>
  );
}
