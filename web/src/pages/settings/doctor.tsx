// Problems of this machine, with fixes.

import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { client, dataOf } from "../../api/client";
import type { Check } from "../../api/schema";
import { formatTime } from "../../components/format";
import { Queried, Section } from "../../components/page";
import { Prose } from "../../components/prose";

export function useDoctor(enabled = true) {
  return useQuery({
    queryKey: ["doctor"],
    queryFn: ({ signal }) => dataOf(client.GET("/api/v1/doctor", { signal })),
    staleTime: 30_000,
    refetchInterval: 60_000,
    enabled,
  });
}

export const isProblem = (check: Check) => !check.ok && !check.note;

export function Doctor() {
  const doctor = useDoctor();
  const queries = useQueryClient();
  const [isAsked, setIsAsked] = useState(false);
  const look = () => {
    setIsAsked(true);
    void doctor.refetch().finally(() => setIsAsked(false));
  };
  return (
    <Section
      title="Doctor"
      actions={
        <>
          <button type="button" disabled={doctor.isFetching} aria-busy={isAsked} onClick={look}>
            Look again
          </button>
          {isAsked && (
            <button type="button" onClick={() => void queries.cancelQueries({ queryKey: ["doctor"] })}>
              Cancel
            </button>
          )}
        </>
      }
    >
      <Queried query={doctor}>
        {({ checks }) => (
          <>
            <p role="status">
              {checks.filter(isProblem).length === 0 ? "No problem" : `${checks.filter(isProblem).length} problems`} at{" "}
              {formatTime(doctor.dataUpdatedAt / 1000)}
            </p>
            <Checks checks={[...checks].sort((a, b) => Number(isProblem(b)) - Number(isProblem(a)))} />
          </>
        )}
      </Queried>
    </Section>
  );
}

export function Checks({ checks }: { checks: Check[] }) {
  return (
    <ul className="checks">
      {checks.map((check, index) => {
        const [mark, word] = isProblem(check) ? ["✕", "problem"] : check.note ? ["○", "note"] : ["●", "ok"];
        return (
          <li key={index}>
            <span className={`check-${word}`}>
              <span aria-hidden="true">{mark}</span> {word}
            </span>
            <strong>{check.name}</strong>{" "}
            <span>
              <Prose text={check.detail} />{" "}
              {isProblem(check) && (
                <em>
                  <Prose text={check.do} />
                </em>
              )}
            </span>
          </li>
        );
      })}
    </ul>
  );
}
