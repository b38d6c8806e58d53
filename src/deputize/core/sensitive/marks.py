"""Name the marks that stand in place of what was redacted."""

from typing import Final

REDACTION_MARK: Final = "[redacted]"
PATH_MARK: Final = "[path]"
EMAIL_MARK: Final = "[email]"
CARD_MARK: Final = "[card]"
SSN_MARK: Final = "[ssn]"
IBAN_MARK: Final = "[iban]"
PHONE_MARK: Final = "[phone]"
IP_MARK: Final = "[ip]"
# As a pattern, for rules that must leave marks alone.
MARK_PATTERN: Final = r"\[(?:redacted|path|email|card|ssn|iban|phone|ip)\]"
# For the first look at a document, which reads texts as JSON spells them: a space may be `\n` there, and a word may
# begin right after the letter of such an escape.
JSON_SPACE: Final = r"(?:\s|\\[fnrt])"
JSON_WORD_START: Final = r"(?:\b|\\[bfnrt]|\\u00[01][0-9a-f])"
