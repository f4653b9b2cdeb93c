import react from "@vitejs/plugin-react";
import { defineConfig } from "vitest/config";

const SOURCES = "/web/src/";

/** `pages-jobs-detail` for src/pages/jobs/detail.tsx: a module's path is unique, and stays while its content changes. */
function nameOfChunk({ facadeModuleId, moduleIds }: { facadeModuleId?: string | null; moduleIds: string[] }): string {
  // What several pages share has no facade; it is named for its last module of ours, which imports the others.
  const module = facadeModuleId ?? moduleIds.findLast((id) => id.includes(SOURCES)) ?? moduleIds.at(-1) ?? "shared";
  const path = module.includes(SOURCES) ? module.split(SOURCES)[1]! : module.split("/node_modules/").at(-1)!;
  const name = path.replace(/\.[cm]?[jt]sx?$/, "").replace(/\/index$/, "");
  return `assets/${name.replace(/^pages\//, "").replaceAll(/[^\w.]+/g, "-").replace(/^-/, "")}.js`;
}

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
    cssCodeSplit: false, // parts of it would be named in the order in which they are found
    chunkSizeWarningLimit: 700,
    license: { fileName: "licenses.md" },
    // Names without hashes: the build is committed, and a change of one page changes few files. The server has browsers
    // ask whether a file has changed. Exports keep their names, so that a page that is open never takes one for another.
    rolldownOptions: {
      output: {
        minifyInternalExports: false,
        entryFileNames: "assets/main.js",
        chunkFileNames: nameOfChunk,
        assetFileNames: "assets/[name][extname]",
      },
    },
  },
  server: { proxy: { "/api": "http://127.0.0.1:8898", "/health": "http://127.0.0.1:8898" } },
  test: { include: ["src/**/*.test.ts"] },
});
