/** The conditions of an SQL statement with their parameters, for lists whose filters may be absent. */
export class Where {
  /** In order of their numbers. */
  readonly values: unknown[];
  readonly #conditions: string[];

  /** `condition` applies to every row, and refers to `values` as $1 and so on. */
  constructor(condition: string, values: readonly unknown[]) {
    this.values = [...values];
    this.#conditions = [condition];
  }

  /**
   * Adds a condition on a value, unless that is undefined. The value becomes a parameter, whose name is passed to `condition`; it
   * is never part of the text.
   */
  and(value: unknown, condition: (parameter: string) => string): this {
    if (value === undefined) return this;
    return this.always(condition(`$${this.values.push(value)}`));
  }

  /** Adds a condition without a value. */
  always(condition: string): this {
    this.#conditions.push(condition);
    return this;
  }

  get sql(): string {
    // an `or` within a condition must not affect the others
    return this.#conditions.map((condition) => `(${condition})`).join(' and ');
  }
}
