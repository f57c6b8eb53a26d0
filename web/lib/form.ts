import { type FormErrors, type UseFormInput, useForm } from '@mantine/form';
import { problemOf } from './errors.tsx';

/** Where a form keeps what the server refused and no field is at fault for. */
const FORM = 'form';

/**
 * A form whose values the server checks as well. `refused` takes the error of a call and puts each fault at the field
 * that its pointer names, moves the focus to the first of them, and leaves everything else in `fault`, which `FormFoot`
 * shows. A field's fault is cleared when the field changes, `fault` with the next submit. The mutation must be quiet,
 * or the fault is shown twice.
 */
export function useServerForm<Values extends Record<string, unknown>>({
  pointers = {},
  ...input
}: UseFormInput<Values> & {
  initialValues: Values;
  /** The JSON pointers of fields that the request has at another place than `/name`. */
  pointers?: Partial<Record<keyof Values & string, string>>;
}) {
  const form = useForm<Values>(input);
  const refused = (error: unknown) => {
    const { errors = [], detail, title } = problemOf(error);
    const found: FormErrors = {};
    for (const { pointer, message } of errors) {
      const name = Object.keys(form.values).find((one) => {
        const at = pointers[one] ?? `/${one}`;
        return pointer === at || pointer.startsWith(`${at}/`);
      });
      const place = name ?? FORM;
      found[place] = found[place] ? `${found[place]}; ${message}` : message;
    }
    if (errors.length === 0) found[FORM] = detail ?? title;
    form.setErrors(found);
    const first = Object.keys(form.values).find((name) => found[name]);
    if (first) form.getInputNode(first)?.focus();
  };
  return { ...form, refused, fault: form.errors[FORM] };
}

/** What is written in a field, without the spaces around it; undefined where that is nothing. */
export const filled = (text: string): string | undefined => text.trim() || undefined;
