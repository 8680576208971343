"""The dashboard: the only folder, with app.server, that imports streamlit."""
