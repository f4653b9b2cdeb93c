// An address that is no page.

import { Link, useLocation } from "wouter";
import { Empty } from "../../components/notes";
import { Page } from "../../components/page";

export default function MissingPage() {
  const [location] = useLocation();
  return (
    <Page title="No such page">
      <Empty title="There is nothing at this address">
        <p>
          <code>/dashboard{location.slice(0, 200)}</code> is not a page. Go to the <Link href="/">Overview</Link>.
        </p>
      </Empty>
    </Page>
  );
}
