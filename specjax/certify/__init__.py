"""Certification: whether speculation changes anything, on one's own models, prompts and settings."""

from specjax.certify.certificate import Certificate, Check
from specjax.certify.figure import write_figure
from specjax.certify.stages import STAGES, Effort, certify

__all__ = ["STAGES", "Certificate", "Check", "Effort", "certify", "write_figure"]
