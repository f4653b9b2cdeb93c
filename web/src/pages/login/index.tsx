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
          On the machine of this service, <code>trainyard dashboard</code> prints a link that logs you in.{" "}
          <code>trainyard tokens create --name NAME --scope admin</code> makes a token; the text in{" "}
          <code>TRAINYARD_HOME/prefect-auth-string</code> works, too.
        </p>
      </form>
    </Page>
  );
}
