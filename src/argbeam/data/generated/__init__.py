"""The generated corpus: an invented language with dependency trees and translations, drawn from a seed.

Read `corpus` first, then `grammar`.
"""
