import hooks from "eslint-plugin-react-hooks";
import typescript from "typescript-eslint";

export default typescript.config(
  { ignores: ["node_modules", "src/api/schema.d.ts"] },
  ...typescript.configs.recommended,
  hooks.configs.flat.recommended,
  { rules: { "@typescript-eslint/no-unused-vars": ["error", { varsIgnorePattern: "^_" }] } },
);
