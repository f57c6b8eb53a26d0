import type { Template } from './policy-templates.ts';
import { TEMPLATES } from './templates.ts';
import './template-gallery.css';

/** The policy templates, one button each. `shown`: shows only those for which it returns true. */
export function Gallery({
  onChoose,
  shown = () => true,
}: {
  onChoose: (template: Template) => void;
  shown?: (template: Template) => boolean;
}) {
  return (
    <div className="gallery">
      {TEMPLATES.filter(shown).map((template) => (
        <button key={template.id} type="button" onClick={() => onChoose(template)}>
          <strong>{template.title}</strong>
          <span>{template.about}</span>
        </button>
      ))}
    </div>
  );
}
