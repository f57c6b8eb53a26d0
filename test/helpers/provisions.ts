import { inject } from 'vitest';

export interface DatabaseServer {
  /** URL of the server's database `postgres` as superuser. */
  adminUrl: string;
  /** URL of a database, with the placeholder NAME for its name, as the owner of the program's tables. */
  databaseUrl: string;
}

/** The run's PostgreSQL with its migrated database `template_svc`; the first caller starts it. */
export const databaseServer = () => provided<DatabaseServer>('database');

/** Resolves when the dashboard is built from its current sources. */
export const builtDashboard = () => provided<object>('dashboard');

async function provided<T>(what: string): Promise<T> {
  const answer = await fetch(`${inject('provisions')}/${what}`);
  if (!answer.ok) throw new Error(`the ${what} of this run could not be made: ${await answer.text()}`);
  return (await answer.json()) as T;
}
