import { TEMPLATES, type Template } from './policy-templates.ts';
import './template-gallery.css';

/** The policy templates, one button each. */
export function Gallery({ onChoose }: { onChoose: (template: Template) => void }) {
  return (
    <div className="gallery">
      {TEMPLATES.map((template) => (
        <button key={template.id} type="button" onClick={() => onChoose(template)}>
          <strong>{template.title}</strong>
          <span>{template.about}</span>
        </button>
      ))}
    </div>
  );
}
