// The form that asks for a token.

import { useState } from "react";
import { useLogIn } from "../../api/login";
import { ProblemNote } from "../../components/notes";
import { Page } from "../../components/page";

export function LoginPage() {
  const [token, setToken] = useState("");
  const login = useLogIn();
  return (
    <Page title="Log in">
      <form
        className="panel narrow"
        onSubmit={(event) => {
          event.preventDefault();
          login.mutate(token.trim());
        }}
      >
        <label htmlFor="token">Token</label>
        <input
          id="token"
          type="password"
          autoComplete="current-password"
          required
          autoFocus
          value={token}
          onChange={(event) => setToken(event.target.value)}
        />
        <button className="primary" disabled={login.isPending}>
          Log in
        </button>
        {login.error && <ProblemNote error={login.error} />}
        <p>
          <code>trainyard tokens create --name NAME --scope admin</code> makes one. The text in{" "}
          <code>TRAINYARD_HOME/prefect-auth-string</code> works, too.
        </p>
      </form>
    </Page>
  );
}
