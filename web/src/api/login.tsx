// The logged-in caller. The cookie of a login is not readable by scripts; its rights come from `GET /api/v1/login`.

import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { createContext, useContext, useEffect, type ReactNode } from "react";
import { API, fetchOrThrow, Problem, setCsrf, type Login } from "./client";
import { LoginPage } from "../pages/login";
import { Loading, ProblemNote } from "../components/notes";

const LoginContext = createContext<Login | null>(null);
const RANK = { read: 0, run: 1, admin: 2 };

const LOGIN_CODE = /^#login=(.+)$/;

/** The code of a link of `trainyard dashboard`, which works once; it leaves the address at once. */
function takeCode(): string {
  const code = window.location.hash.match(LOGIN_CODE)?.[1] ?? "";
  if (code) window.history.replaceState(null, "", window.location.pathname);
  return code;
}

async function readLogin(): Promise<Login | null> {
  const code = takeCode();
  try {
    if (code) await fetchOrThrow(post("login", { token: code }));
    const login = (await (await fetchOrThrow(new Request(`${API}/login`))).json()) as Login;
    setCsrf(login.csrf);
    return login;
  } catch (error) {
    if (error instanceof Problem && error.status === 401) return null;
    throw error;
  }
}

/** The pages for whom is logged in; the form that asks for a token for everybody else. */
export function LoginGate({ children }: { children: ReactNode }) {
  const queries = useQueryClient();
  useEffect(() => {
    // A link that is pasted into an open tab changes the part after # alone, and loads no page.
    const follow = () => void (LOGIN_CODE.test(window.location.hash) && queries.resetQueries());
    window.addEventListener("hashchange", follow);
    return () => window.removeEventListener("hashchange", follow);
  }, [queries]);
  const { data, error, isPending } = useQuery({ queryKey: ["login"], queryFn: readLogin, staleTime: Infinity });
  if (isPending) return <Loading />;
  if (error && data === undefined) return <ProblemNote error={error} />;
  if (!data) return <LoginPage />;
  return <LoginContext value={data}>{children}</LoginContext>;
}

/** The login of this page, and whether it allows a scope. */
export function useLogin(): Login & { allows: (scope: Login["scope"]) => boolean } {
  const login = useContext(LoginContext);
  if (!login) throw new Error("useLogin is for pages inside LoginGate");
  return { ...login, allows: (scope) => RANK[login.scope] >= RANK[scope] };
}

/** Log in with a token; the answer sets the cookie. */
export function useLogIn() {
  const queries = useQueryClient();
  return useMutation({
    mutationFn: (token: string) => fetchOrThrow(post("login", { token })),
    onSuccess: () => queries.resetQueries(),
  });
}

export function useLogOut() {
  const queries = useQueryClient();
  return useMutation({
    mutationFn: () => fetchOrThrow(post("logout")),
    onSuccess: () => {
      queries.clear();
      window.location.assign("/dashboard");
    },
  });
}

function post(path: string, body?: object): Request {
  return new Request(`${API}/${path}`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body ?? {}),
  });
}
