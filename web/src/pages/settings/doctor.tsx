// What is wrong on this machine, and what to do about it.

import { useQuery } from "@tanstack/react-query";
import { client, dataOf } from "../../api/client";
import type { Check } from "../../api/schema";
import { formatTime } from "../../components/format";
import { Queried, Section } from "../../components/page";
import { Prose } from "../../components/prose";

export function useDoctor() {
  return useQuery({
    queryKey: ["doctor"],
    queryFn: () => dataOf(client.GET("/api/v1/doctor")),
    staleTime: 30_000,
    refetchInterval: 60_000,
  });
}

export const isProblem = (check: Check) => !check.ok && !check.note;

export function Doctor() {
  const doctor = useDoctor();
  return (
    <Section
      title="Doctor"
      actions={
        <button type="button" disabled={doctor.isFetching} onClick={() => void doctor.refetch()}>
          Look again
        </button>
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
