import { type FormErrors, type UseFormInput, useForm } from '@mantine/form';
import { problemOf } from './problem.ts';

/** The key of form errors that belong to no field. */
const FORM = 'form';

/**
 * A form with server-side validation. `refused` takes the error of a call, assigns each error to the field that its pointer
 * names, focuses the first such field, and puts everything else into `fault`, which `FormFoot` shows. A field's error is cleared
 * when the field changes, `fault` with the next submit. The mutation must be quiet, or the error is shown twice.
 */
export function useServerForm<Values extends Record<string, unknown>>({
  pointers = {},
  ...input
}: UseFormInput<Values> & {
  initialValues: Values;
  /** JSON pointers for fields whose place in the request is not `/name`. */
  pointers?: Partial<Record<keyof Values & string, string>>;
}) {
  const form = useForm<Values>(input);
  const refused = (error: unknown) => {
    const { code, errors = [], detail, title } = problemOf(error);
    const found: FormErrors = {};
    for (const { pointer, message } of errors) {
      const name = Object.keys(form.values).find((one) => {
        const at = pointers[one] ?? `/${one}`;
        return pointer === at || pointer.startsWith(`${at}/`);
      });
      const place = name ?? FORM;
      found[place] = found[place] ? `${found[place]}; ${message}` : message;
    }
    if (errors.length === 0) found[FORM] = code === 'UNREACHABLE' ? title : (detail ?? title);
    form.setErrors(found);
    const first = Object.keys(form.values).find((name) => found[name]);
    if (first) form.getInputNode(first)?.focus();
  };
  return { ...form, refused, fault: form.errors[FORM] };
}

/** The trimmed value of a field; undefined if empty. */
export const filled = (text: string): string | undefined => text.trim() || undefined;

/** Puts typed text on one line, as the server requires of a reason. */
export const asReason = (text: string): string => text.trim().replace(/\s+/g, ' ');
