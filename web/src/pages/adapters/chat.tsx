// Ask an adapter and its base the same: each answers with its own conversation.

import { useMutation } from "@tanstack/react-query";
import { useRef, useState } from "react";
import { Link } from "wouter";
import { Problem } from "../../api/client";
import type { components } from "../../api/schema";
import { postForEvents } from "../../api/streams";
import { useLogin } from "../../api/login";
import { ProblemNote } from "../../components/notes";
import { Page, Section } from "../../components/page";
import "../../styles/records.css";

type Answer = components["schemas"]["AskedAnswer"];

/** What there is of the answers while they are written. */
interface Written {
  base?: string;
  adapter?: string;
}

interface ProblemDocument {
  code: string;
  label: string;
  why: string;
  do: string;
}

interface Options {
  system: string;
  max_tokens: number;
  temperature: number;
}

export default function ChatPage({ tenant, role, version }: { tenant: string; role: string; version: string }) {
  const name = `${tenant}/${role}/${version}`;
  const [answers, setAnswers] = useState<Answer[]>([]);
  const [options, setOptions] = useState<Options>({ system: "", max_tokens: 128, temperature: 0 });
  const mayRun = useLogin().allows("run");
  const stop = useRef<AbortController>(null);
  const [texts, setTexts] = useState<Written>({});
  const ask = useMutation({
    mutationFn: async (question: string) => {
      stop.current = new AbortController();
      const turns = answers
        .filter((answer) => answer.error == null)
        .map((answer) => ({ question: answer.question, base: answer.base ?? "", adapter: answer.adapter ?? "" }));
      const body = { adapter: name, question, turns, seed: 0, ...options };
      setTexts({});
      let answer: Answer | undefined;
      await postForEvents(
        "/adapters/ask",
        body,
        {
          answer: ({ side, text }: { side: keyof Written; text: string }) =>
            setTexts((previous) => ({ ...previous, [side]: text })),
          end: (event: Answer | { error: ProblemDocument }) => {
            if ("question" in event) answer = event;
            else throw new Problem(0, event.error.code, event.error.label, event.error.why, event.error.do);
          },
        },
        stop.current.signal,
      );
      if (!answer) throw new Problem(0, "", "The answer broke off.", "", "Ask again.");
      return answer;
    },
    onSuccess: (answer) => setAnswers((previous) => [...previous, answer]),
  });
  return (
    <Page title={`Chat with ${name}`} actions={<Link href={`/adapters/${name}`}>The version</Link>}>
      <Section
        title="Base and adapter side by side"
        actions={
          <button
            type="button"
            disabled={answers.length === 0 || ask.isPending}
            onClick={() => {
              setAnswers([]);
              ask.reset();
            }}
          >
            Begin again
          </button>
        }
      >
        <ol className="talk" aria-live="polite">
          {answers.map((answer, index) => (
            <li key={index}>
              <Turn answer={answer} />
            </li>
          ))}
        </ol>
        {ask.isPending && texts.base !== undefined && (
          <Turn
            answer={{
              question: ask.variables,
              base: texts.base,
              adapter: texts.adapter ?? "…",
              base_model: "",
              adapter_version: version,
              error: null,
            }}
          />
        )}
        {ask.isPending && (
          <p className="loading" role="status">
            Both are asked “{ask.variables}”; a model server that is not running is started first …{" "}
            <button type="button" onClick={() => stop.current?.abort()}>
              Cancel
            </button>
          </p>
        )}
        {ask.error && ask.error.name !== "AbortError" && <ProblemNote error={ask.error} />}
        {mayRun ? (
          <QuestionForm busy={ask.isPending} options={options} onOptions={setOptions} onAsk={ask.mutate} />
        ) : (
          <p>Your token may only look: asking needs the scope run.</p>
        )}
      </Section>
    </Page>
  );
}

function Turn({ answer }: { answer: Answer }) {
  return (
    <>
      <h3 className="cell-text">{answer.question}</h3>
      {answer.error ? (
        <p className="problem">{answer.error}</p>
      ) : (
        <div className="side-by-side">
          <div>
            <h4>Base: {answer.base_model}</h4>
            <p className="cell-text">{answer.base || "(nothing)"}</p>
          </div>
          <div>
            <h4>Adapter: {answer.adapter_version}</h4>
            <p className="cell-text">{answer.adapter || "(nothing)"}</p>
          </div>
        </div>
      )}
    </>
  );
}

interface QuestionFormProps {
  busy: boolean;
  options: Options;
  onOptions: (options: Options) => void;
  onAsk: (question: string) => void;
}

function QuestionForm({ busy, options, onOptions, onAsk }: QuestionFormProps) {
  const [question, setQuestion] = useState("");
  const send = () => {
    if (busy || !question.trim()) return;
    onAsk(question.trim());
    setQuestion("");
  };
  return (
    <form
      className="talk-form"
      onSubmit={(event) => {
        event.preventDefault();
        send();
      }}
    >
      <label htmlFor="question">Question</label>
      <textarea
        id="question"
        rows={2}
        maxLength={100_000}
        value={question}
        onChange={(event) => setQuestion(event.target.value)}
        onKeyDown={(event) => {
          if (event.key === "Enter" && !event.shiftKey) {
            event.preventDefault();
            send();
          }
        }}
      />
      <div className="filters">
        <button type="submit" className="primary" disabled={busy || !question.trim()} aria-busy={busy}>
          Ask both
        </button>
        <div>
          <label htmlFor="max-tokens">Most tokens</label>
          <input
            id="max-tokens"
            type="number"
            min={1}
            max={4096}
            value={options.max_tokens}
            onChange={(event) => onOptions({ ...options, max_tokens: Number(event.target.value) || 1 })}
          />
        </div>
        <div>
          <label htmlFor="temperature">Temperature</label>
          <input
            id="temperature"
            type="number"
            min={0}
            max={2}
            step={0.1}
            value={options.temperature}
            onChange={(event) => onOptions({ ...options, temperature: Number(event.target.value) || 0 })}
          />
        </div>
        <div>
          <label htmlFor="system">System message</label>
          <input
            id="system"
            maxLength={100_000}
            value={options.system}
            onChange={(event) => onOptions({ ...options, system: event.target.value })}
          />
        </div>
      </div>
    </form>
  );
}
