import react from "@vitejs/plugin-react";
import { defineConfig } from "vite";

// The build is package data of `trainyard/surfaces/web`; the service answers it below /dashboard. `npm run dev` serves the
// sources instead, and passes the API's requests to a service on this machine.
export default defineConfig({
  base: "/dashboard/",
  plugins: [react()],
  build: {
    outDir: "../trainyard/surfaces/web",
    emptyOutDir: true,
    assetsInlineLimit: 0, // a data: address would need an exception in the content security policy
    modulePreload: { polyfill: false }, // every browser of this build's target has it
    chunkSizeWarningLimit: 700,
    license: { fileName: "licenses.md" },
  },
  server: { proxy: { "/api": "http://127.0.0.1:8898", "/health": "http://127.0.0.1:8898" } },
});
