import { QueryCache, QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { Problem } from "./api/client";
import { LoginGate } from "./api/login";
import { App } from "./app";
import { reloadAfterUpdate } from "./components/boundary";
import { applyTheme } from "./components/theme";
import "./styles/tokens.css";
import "./styles/base.css";
import "./styles/components.css";

applyTheme();
reloadAfterUpdate();

const queries: QueryClient = new QueryClient({
  queryCache: new QueryCache({
    // A login that has ended: the form that asks for a token is shown in the place of the page.
    onError: (error, query) => {
      if (error instanceof Problem && error.status === 401 && query.queryKey[0] !== "login") {
        void queries.invalidateQueries({ queryKey: ["login"] });
      }
    },
  }),
  defaultOptions: {
    queries: {
      // A refusal is the same the next time; an outage may be over, and a busy service answers later.
      retry: (count, error) =>
        error instanceof Problem && ((error.isOutage && count < 2) || (error.isBusy && count < 5)),
      networkMode: "always", // the service is often on this machine: the browser's word about the network says nothing
      staleTime: 1000,
    },
    mutations: { networkMode: "always" },
  },
});

createRoot(document.getElementById("root")!).render(
  <StrictMode>
    <QueryClientProvider client={queries}>
      <LoginGate>
        <App />
      </LoginGate>
    </QueryClientProvider>
  </StrictMode>,
);
