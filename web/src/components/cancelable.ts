// An action whose answer may take long: who does not want to wait for it ends the request.

import { useMutation, type UseMutationResult } from "@tanstack/react-query";
import { useRef } from "react";

export type Cancelable<T, V> = UseMutationResult<T, Error, V> & { cancel: () => void };

/** Such an action only reads: what the service has begun ends with its answer, which nobody gets. */
export function useCancelable<T, V>(ask: (variables: V, signal: AbortSignal) => Promise<T>): Cancelable<T, V> {
  const control = useRef(new AbortController());
  const mutation = useMutation({
    mutationFn: (variables: V) => {
      control.current = new AbortController();
      return ask(variables, control.current.signal);
    },
  });
  const cancel = () => {
    control.current.abort();
    mutation.reset();
  };
  return { ...mutation, cancel };
}
